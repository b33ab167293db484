"""What each of the seven ideas is for, seen in a run."""

import counting
import numpy as np
import pytest
import vattention
import window
from test_plug_in_policies import (
    COST,
    COSTS,
    MAX_LEN,
    POLICIES,
    POOL,
    PREEMPTIONS,
    SCHEDULERS,
    run,
    workload,
)
from tiny import analytic, server

from testbed.core.request import PS, Request
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sim.simulation import simulate


@pytest.mark.parametrize("keep_mapped", [True, False])
def test_mapped_pages_add_the_configured_time(keep_mapped):
    requests = [r._replace(arrival_ps=0) for r in workload(0)]
    policies = [vattention.VAttention(POOL, 16, keep_mapped) for _ in range(2)]
    free = analytic(overhead_s=1e-3, extra_s={"pages_mapped": 0.0})
    predicted = analytic(overhead_s=1e-3, extra_s=COSTS)
    busy = [run(requests, p, cost=c).totals.busy_ps for p, c in zip(policies, (free, predicted), strict=True)]
    assert busy[1] - busy[0] == policies[0].num_mapped * round(1e-4 * PS) > 0


def tables_by_num_slots(policy, request):
    """The table that the only sequence of a request has for so many slots, and the totals of its run."""
    tables = {}

    class Watched(SeparatePrefill):
        def plan(self):
            plan = super().plan()
            tables.update({seq.num_slots: self.policy.table(seq) for seq in self.state.batch})
            return plan

    scheduler = Watched(policy, Recompute(), max_num_batched_tokens=40, max_num_seqs=1)
    return tables, simulate([request], scheduler, COST, MAX_LEN, fast_forward=False).totals


def test_window_keeps_first_and_last_tokens():
    policy = window.Window(POOL, sinks=4, window=8, block_size=4)
    kept = policy.num_sinks * 4, policy.max_blocks * 4
    tables = tables_by_num_slots(policy, Request(0, 0, 10, 60))[0]
    assert kept == (4, 16)
    assert tables[17] == [tables[16][i] for i in (0, 2, 3, 1)]  # the oldest block behind the sink is written over
    assert tables[21] == [tables[16][i] for i in (0, 3, 1, 2)]
    assert all(table[0] == tables[16][0] for table in tables.values())


def mean_latency(recorder):
    columns = recorder.requests.columns()
    return float(np.mean(columns["finish_ps"] - columns["arrival_ps"]))


def test_shortest_remaining_first_lowers_the_mean_latency():
    requests = workload(4, 80, gap_ps=10**8)
    fcfs, shortest = (run(requests, POLICIES["counting"](POOL), s) for s in (MixedPrefill, SCHEDULERS[-1]))
    assert mean_latency(shortest) < 0.9 * mean_latency(fcfs)


def test_cheapest_victim_needs_less_time_than_the_last():
    requests = workload(3, 60, gap_ps=10**8)
    cost = analytic(server(fp16_flops=1e9, host_bandwidth=1e6), overhead_s=1e-4, copy_s=1e-5)
    last, cheapest = (
        run(requests, POLICIES["counting"](POOL), preemption=p, cost=cost) for p in (Swap, PREEMPTIONS[-1])
    )
    assert cheapest.totals.recomputes + cheapest.totals.swaps > 0
    assert cheapest.totals.busy_ps < last.totals.busy_ps


@pytest.mark.parametrize(("host_bandwidth", "way"), [(1e12, "swaps"), (1.0, "recomputes")])
def test_victim_recovers_in_the_cheaper_way(host_bandwidth, way):
    cost = analytic(server(fp16_flops=1e9, host_bandwidth=host_bandwidth))
    totals = run(workload(3, gap_ps=10**8), POLICIES["counting"](POOL), preemption=PREEMPTIONS[-1], cost=cost).totals
    assert getattr(totals, way) > 0
    assert totals.swaps + totals.recomputes == getattr(totals, way)


def test_plug_in_counters_reach_the_summary():
    policy = counting.CountingPaged(POOL, block_size=8)
    run([Request(0, 0, 12, 20, num_seqs=2)], policy)
    # each of two sequences ends with 31 tokens: blocks from token 1 and 9, 17, 25; 31 - 12 = 19, 14 and 6 old
    counted = {name: n for name, n in policy.counters().items() if n}
    assert counted == {"copies_on_write": 1, "blocks_of_age_16": 4, "blocks_of_age_0": 4}
