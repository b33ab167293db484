"""Routers: a small file each."""
