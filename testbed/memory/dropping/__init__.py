"""Policies of sequences that need fewer slots while they grow."""
