"""Readers of others' measurements and models, in our format, with what they lack."""
