"""Slow references, random batches, and the comparison of every kernel with them."""
