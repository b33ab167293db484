"""Decode attention in five steps, simple to fast, each checked and timed on equal batches."""
