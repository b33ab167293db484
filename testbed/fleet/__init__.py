"""Several engines on one clock, behind a router."""
