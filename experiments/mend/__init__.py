"""`testbed mend`: which change of a server ends its preemptions."""
