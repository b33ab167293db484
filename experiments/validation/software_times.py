"""The software times that can be fitted, and what a profile's cost calls them."""

NAMES = ("iteration", "request", "token")
KEYS = dict(zip(NAMES, ("overhead_s", "overhead_per_request_s", "overhead_per_token_s"), strict=True))
