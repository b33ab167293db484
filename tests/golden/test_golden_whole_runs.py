"""Golden rows of whole runs of every kind: what is recorded of each request, span and gap, exactly.
A deliberate change is `pytest --update-golden`.
"""

from random import Random

import pytest
from digests import noting_ops, row_of_run
from drawn_runs import BEAMS, KINDS, LONGEST
from same_runs import lengths_of

from testbed.engine.simulation import simulate

NUM_SEEDS = {"SGLang": 12, "dropped tokens": 3}  # of orders many, of policies two; of others 5
CASES = [(kind, seed) for kind in KINDS for seed in range(NUM_SEEDS.get(kind, 5))]


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_a_whole_run_equals_the_golden_row(kind, seed, golden):
    requests, scheduler, cost, options = KINDS[kind](Random(seed))
    more = {"beams": BEAMS, "lengths": lengths_of(scheduler), **options}
    ops = noting_ops(scheduler)
    recorder = simulate(list(requests), scheduler, cost, LONGEST, **more)
    counters = scheduler.policy.counters()
    golden("whole_runs.csv", f"{kind} {seed}", row_of_run(recorder, counters, ops))
