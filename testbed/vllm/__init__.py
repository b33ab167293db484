"""vLLM's server: its releases, its options, its memory and its pages."""
