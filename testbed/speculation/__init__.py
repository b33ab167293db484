"""Speculative decoding: the drafter, its drafts, and how many of them are accepted."""
