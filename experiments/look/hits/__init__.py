"""Hit rates of a trace over cache sizes, without a clock: `testbed hits`."""
