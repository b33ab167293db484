"""Decode attention in five steps, from simple to fast, each checked and timed on the same
batches.
"""
