"""One contiguous reservation per sequence (section 3.1), over a buddy allocator."""
