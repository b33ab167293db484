"""Wrappers: check, choose a variant, launch."""
