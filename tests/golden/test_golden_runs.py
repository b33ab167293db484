"""Golden rows: exact totals of two minutes of each policy, and of half a minute in which every
iteration is simulated. A deliberate change is `pytest --update-golden`.
"""

from dataclasses import asdict
from functools import partial

import pytest

from testbed.core.request import Workload
from testbed.core.specs import GIB, GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.software import SoftwareTimes
from testbed.engine.arrivals import Slotted
from testbed.engine.simulation import simulate
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.dropping.prompt_budget import PromptBudget
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.run.oracles import with_lengths
from testbed.sched.beam_search import SyntheticBeams
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import RecomputeSingleSwapGroup
from testbed.sched.separate import SeparatePrefill
from testbed.traces.synthetic import Fitted

MODEL = ModelSpec("opt-13b", 40, 5120, 40, 40, 128, 20480, 2, 50272, 2048, tied_embedding=True)
SERVER = ServerSpec("a100", GpuSpec("a100-40gb", 40 * GIB, 1.555e12, 312e12, 32e9, 600e9), 1)
COST = AnalyticCost(
    MODEL,
    SERVER,
    Efficiencies(attention_bandwidth=0.5, copy_s=4e-6),
    SoftwareTimes(overhead_s=9e-3),
)
BEAMS = SyntheticBeams(concentration=0.6)
POOL = PoolSpec(15728, 2048, host(26214))

CASES = {
    "max": (ContiguousMax, SeparatePrefill, "sharegpt", 1.0, 1, False),
    "pow2": (ContiguousPow2, SeparatePrefill, "sharegpt", 1.0, 1, False),
    "oracle mixed": (ContiguousOracle, MixedPrefill, "sharegpt", 1.0, 1, False),
    "paged overloaded": (Paged, SeparatePrefill, "sharegpt", 3.0, 1, False),
    "paged chunked": (Paged, ChunkedPrefill, "alpaca", 20.0, 1, False),
    "paged parallel 4": (Paged, SeparatePrefill, "alpaca", 12.0, 4, False),
    "paged beam 4": (Paged, SeparatePrefill, "alpaca", 6.0, 4, True),
    "prompt budget": (partial(PromptBudget, budget=64), MixedPrefill, "sharegpt", 1.0, 1, False),
    "prefix caching": (PrefixCaching, ChunkedPrefill, "sharegpt", 2.0, 1, False),
}
HALF_A_MINUTE = ("prompt budget",)


def totals(policy, prefill, trace, rate, num_seqs, beam, duration_s):
    arrivals = Slotted(rate, duration_s).times_ps(None, 0)
    workload = Workload(Fitted(trace).rows(len(arrivals), 0, 2048), arrivals, num_seqs, beam)
    lengths = {}
    scheduler = prefill(
        with_lengths(policy, lengths)(POOL),
        RecomputeSingleSwapGroup(),
        max_num_batched_tokens=2560,
        max_num_seqs=256,
    )
    recorder = simulate(workload, scheduler, COST, 2048, lengths=lengths, beams=BEAMS)
    return {**flat(recorder.totals), "end_ps": recorder.end_ps}


def flat(sums):
    """Every count and every measure by name, those over time with `_time` behind it."""
    counts = asdict(sums)
    assert counts.pop("cancelled") == 0
    per_iteration, over_time = counts.pop("per_iteration"), counts.pop("over_time")
    del (
        counts["shared"],
        counts["shared_ps"],
    )  # long tables, which tests/engine/test_meter.py has in small
    over_time = {f"{name}_time": value for name, value in over_time._asdict().items()}
    return {**counts, **per_iteration._asdict(), **over_time}


@pytest.mark.parametrize("case", CASES)
def test_totals_equal_the_golden_rows(case, golden):
    duration_s = 30 if case in HALF_A_MINUTE else 120
    golden("runs.csv", case, totals(*CASES[case], duration_s))
