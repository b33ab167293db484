"""Correctness of the engine: its logits against an independent implementation, under every kind of
memory policy.
"""
