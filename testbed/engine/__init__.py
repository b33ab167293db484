"""The simulator: the only package that knows SimPy."""
