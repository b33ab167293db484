"""Golden rows of whole runs of every kind: what is recorded of each request, span and gap, exactly.
A deliberate change is `pytest --update-golden`.
"""

from random import Random

import pytest
from digests import OpsRecorder, row_of_run
from drawn_runs import BEAMS, KINDS, LONGEST
from same_runs import lengths_of

from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.engine.simulation import simulate

NUM_SEEDS = {"SGLang": 16, "dropped tokens": 4}  # of orders many, of policies two; of others 8
CASES = [(kind, seed) for kind in KINDS for seed in range(NUM_SEEDS.get(kind, 8))]


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_a_whole_run_equals_the_golden_row(kind, seed, golden):
    requests, scheduler, cost, options = KINDS[kind](Random(seed))
    more = {"beams": BEAMS, "lengths": lengths_of(scheduler), "recorder": OpsRecorder(), **options}
    served = requests if isinstance(requests, AnswerDrivenWorkload) else list(requests)
    recorder = simulate(served, scheduler, cost, LONGEST, **more)
    counters = scheduler.policy.counters()
    golden("whole_runs.csv", f"{kind} {seed}", row_of_run(recorder, counters))
