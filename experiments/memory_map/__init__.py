"""The picture of memory: frames of a memory trace as a raster over time, and as a page to click through."""
