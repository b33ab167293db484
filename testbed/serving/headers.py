"""Headers of a server's answers that say what they are worth."""

SIMULATED = "x-testbed-simulated"
IGNORED = "x-testbed-ignored"
DRAWN = "x-testbed-output-drawn-from"  # the length model of an answer's length
LAG, MAX_LAG = "x-testbed-lag-seconds", "x-testbed-max-lag-seconds"
