"""Prompts found again by content: chained hashes, eviction orders, untimed replay."""
