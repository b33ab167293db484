"""Self-contained HTML pages for `testbed report` and `testbed compare`."""
