"""The contract of memory policies and eviction orders as reusable checks."""
