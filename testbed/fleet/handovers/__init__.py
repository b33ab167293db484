"""Prefill apart from decode: how a prompt's K and V get from one engine to another."""
