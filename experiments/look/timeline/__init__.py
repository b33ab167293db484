"""A run as a trace for Perfetto and chrome://tracing."""
