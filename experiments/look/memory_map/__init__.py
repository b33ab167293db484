"""The memory map: frames of a memory trace as an interactive page."""
