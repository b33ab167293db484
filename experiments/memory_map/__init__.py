"""The memory map: frames of a memory trace as a raster over time, and as an interactive page."""
