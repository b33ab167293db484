"""Imports what every cell needs, and composes what ships, once for all processes of the arena:
those that are forked from this one need not.
"""

import testbed.api  # noqa: F401
from testbed.experiments.arena.arena_bounds import BOUNDS
from testbed.experiments.arena.arena_cell import PLAIN, workload_words
from testbed.experiments.arena.entrants import entrant_of, shipped
from testbed.experiments.arena.rules import Rules
from testbed.experiments.arena.suites import CASES, SERVER
from testbed.experiments.runs.compose import configured
from testbed.run.simulate import run

USUAL = [*SERVER, *Rules("vllm-v1").words]
for case in CASES:
    configured([*USUAL, *workload_words(case, rate=1), *Rules("vllm-v1").words_of(PLAIN)])
for entrant in (*BOUNDS, *map(entrant_of, shipped())):
    configured([*USUAL, *Rules("vllm-v1").words_of(entrant)])
run(configured([*USUAL, *workload_words(CASES[0], rate=10)]))  # reads the profile of costs
