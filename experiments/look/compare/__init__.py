"""The comparison of finished runs that `testbed compare` prints, writes and draws."""
