"""Paged memory (section 4): blocks, tables, copy-on-write, registered prefixes, swap space."""
