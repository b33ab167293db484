"""Files of a user's, from the names of version 0.1.0 to those of 0.2.0 (see testbed/core/renamed.toml)."""
