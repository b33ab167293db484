"""Self-contained HTML pages: what `testbed report` and `testbed compare` share."""
