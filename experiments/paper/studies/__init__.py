"""Kinds of experiments: the runs of a figure, and its findings next to published numbers."""
