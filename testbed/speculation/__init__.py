"""Speculative decoding: who drafts tokens, how many, and how many of them are accepted."""
