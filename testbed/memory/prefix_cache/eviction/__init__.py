"""Eviction orders: which findable block that nobody holds goes first."""
