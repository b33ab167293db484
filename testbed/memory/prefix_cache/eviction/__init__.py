"""Eviction orders: which unreferenced cached block is evicted first."""
