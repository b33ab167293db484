"""Imports what every cell needs, and runs one workload, once for all processes of the arena: those
that are forked from this one need not.
"""

import testbed.api  # noqa: F401
from testbed.experiments.arena.arena_cell import PLAIN, workload_words
from testbed.experiments.arena.rules import Rules
from testbed.experiments.arena.suites import CASES, SERVER
from testbed.experiments.runs.compose import configured
from testbed.run.simulate import run

USUAL = [*SERVER, *Rules("vllm-v1").words]
# Reads the files of options that cells share, and the profile of costs
run(configured([*USUAL, *workload_words(CASES[0], rate=10), *Rules("vllm-v1").words_of(PLAIN)]))
