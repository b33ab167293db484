"""Contiguous memory (section 3.1): one reservation per sequence, over a buddy allocator."""
