"""The exit codes of `testbed`; JSON.md has the same table."""

ANSWERED = 0
NO = 1  # the input is right, and the answer is no
BAD_INPUT = 2
TIME_LIMIT = 124  # as coreutils' timeout has it
INTERRUPTED = 128 + 2
CLOSED_OUTPUT = 128 + 13
TERMINATED = 128 + 15
