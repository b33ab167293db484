"""Cost models: how long an iteration takes, in whole picoseconds."""
