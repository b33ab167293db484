"""Kinds of experiments: what to run for a figure, and which of its numbers the paper published."""
