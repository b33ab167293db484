"""Memory policies: whether these sequences get slots, and which."""
