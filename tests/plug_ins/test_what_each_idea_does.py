"""What each of the seven ideas is for, seen in a run."""

import counting
import numpy as np
import pytest
import two_sizes
import two_tiers
import vattention
import window
from test_plug_in_policies import (
    COST,
    MAX_LEN,
    MODEL,
    POLICIES,
    POOL,
    PREEMPTIONS,
    PRICES,
    SCHEDULERS,
    SERVER,
    run,
    workload,
)

from testbed.core.errors import InputError
from testbed.core.request import PS, Request
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.profile import Choices, ProfileCost, read_profile
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sim.simulation import simulate


@pytest.mark.parametrize("keep_mapped", [True, False])
def test_mapping_costs_what_the_cost_model_says(keep_mapped):
    requests = [r._replace(arrival_ps=0) for r in workload(0)]
    policies = [vattention.VAttention(POOL, 16, keep_mapped) for _ in range(2)]
    free = AnalyticCost(MODEL, SERVER, Efficiencies(overhead_s=1e-3, extra_s={"pages_mapped": 0.0}))
    priced = AnalyticCost(MODEL, SERVER, Efficiencies(overhead_s=1e-3, extra_s=PRICES))
    busy = [run(requests, p, cost=c).totals.busy_ps for p, c in zip(policies, (free, priced), strict=True)]
    assert busy[1] - busy[0] == policies[0].num_mapped * round(1e-4 * PS) > 0


def test_pages_that_stay_mapped_are_not_mapped_again():
    kept, unmapped = (vattention.VAttention(POOL, 16, keep_mapped) for keep_mapped in (True, False))
    for policy in (kept, unmapped):
        run(workload(0), policy)
    assert 0 < kept.num_mapped < unmapped.num_mapped


def test_a_profile_prices_mapping_too_and_no_model_takes_it_for_nothing():
    profile = read_profile("h200-opt-13b-tp1")
    model = ModelSpec(**profile["model"])
    free, priced = (ProfileCost(model, None, profile, Choices(extra_s={"pages_mapped": s})) for s in (0.0, 1e-4))
    requests = [r._replace(arrival_ps=0) for r in workload(1)]
    policies = [vattention.VAttention(POOL, 16) for _ in range(3)]
    busy = [run(requests, p, cost=c).totals.busy_ps for p, c in zip(policies, (free, priced), strict=False)]
    assert busy[1] - busy[0] == policies[0].num_mapped * round(1e-4 * PS)
    with pytest.raises(InputError, match="pages_mapped"):
        run(requests, policies[2], cost=ProfileCost(model, None, profile))


def test_a_window_reads_only_what_it_keeps():
    one = [Request(0, 0, 20, 100)]
    full, short = vattention.VAttention(POOL), window.Window(POOL, sinks=3, window=30, block_size=4)
    by_context = AnalyticCost(MODEL, SERVER, Efficiencies(extra_s=PRICES))
    prices = [run(one, policy, cost=by_context) for policy in (full, short)]
    assert prices[1].totals.busy_ps < prices[0].totals.busy_ps
    assert prices[1].totals.per_iteration.live == 20 + sum(short.stored(n) for n in range(21, 120))
    assert short.stored(119) in range(33, 3 + 30 + 2 * 4)
    assert prices[1].totals.per_iteration.internal < 4 * 4  # the padding of the last block, in its last iterations


def test_a_window_keeps_the_first_tokens_and_the_last():
    policy = window.Window(POOL, sinks=4, window=8, block_size=4)
    kept = policy.num_sinks * 4, policy.max_blocks * 4
    tables = {}

    class Watched(SeparatePrefill):
        def plan(self):
            plan = super().plan()
            for seq in self.residents.batch:
                tables[seq.room] = [extent.start for extent in self.policy.table(seq)]
            return plan

    simulate(
        [Request(0, 0, 10, 60)], Watched(policy, Recompute(), max_num_batched_tokens=40, max_num_seqs=1), COST, 128
    )
    assert kept == (4, 16)
    assert tables[17] == [tables[16][i] for i in (0, 2, 3, 1)]  # the oldest block behind the sink is written over
    assert tables[21] == [tables[16][i] for i in (0, 3, 1, 2)]
    assert all(table[0] == tables[16][0] for table in tables.values())


def test_two_sizes_put_the_head_of_a_prompt_into_large_blocks():
    policy = two_sizes.TwoSizes(POOL, large=16, small=4, large_share=0.5)
    tables = {}

    class Watched(SeparatePrefill):
        def plan(self):
            plan = super().plan()
            tables.update({seq.room: self.policy.table(seq) for seq in self.residents.batch})
            return plan

    scheduler = Watched(policy, Recompute(), max_num_batched_tokens=40, max_num_seqs=1)
    totals = simulate([Request(0, 0, 37, 30)], scheduler, COST, MAX_LEN, fast_forward=False).totals
    assert [extent.length for extent in tables[41]] == [16, 16, 4, 4, 4]
    assert all(extent.start >= policy.num_large * 16 for extent in tables[41][2:])
    assert totals.per_iteration.internal == 2  # it ends with 67 tokens: the last two iterations hold 68 slots


def mean_latency(recorder):
    columns = recorder.requests.columns()
    return float(np.mean(columns["finish_ps"] - columns["arrival_ps"]))


def test_shortest_remaining_first_lowers_the_mean_latency():
    requests = workload(4, 80, gap_ps=10**8)
    fcfs, shortest = (run(requests, POLICIES["counting"](POOL), s) for s in (MixedPrefill, SCHEDULERS[-1]))
    assert mean_latency(shortest) < 0.9 * mean_latency(fcfs)


def test_the_cheapest_victim_is_cheaper_than_the_last():
    requests = workload(3, 60, gap_ps=10**8)
    slow_host = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e9, 1e6, 1e9), 1)
    cost = AnalyticCost(MODEL, slow_host, Efficiencies(overhead_s=1e-4, copy_s=1e-5))
    last, cheapest = (
        run(requests, POLICIES["counting"](POOL), preemption=p, cost=cost) for p in (Swap, PREEMPTIONS[-1])
    )
    assert cheapest.totals.recomputes + cheapest.totals.swaps > 0
    assert cheapest.totals.busy_ps < last.totals.busy_ps


@pytest.mark.parametrize(("host_bandwidth", "way"), [(1e12, "swaps"), (1.0, "recomputes")])
def test_a_victim_comes_back_in_the_cheaper_way(host_bandwidth, way):
    server = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e9, host_bandwidth, 1e9), 1)
    cost = AnalyticCost(MODEL, server, Efficiencies())
    totals = run(workload(3, gap_ps=10**8), POLICIES["counting"](POOL), preemption=PREEMPTIONS[-1], cost=cost).totals
    assert getattr(totals, way) > 0
    assert totals.swaps + totals.recomputes == getattr(totals, way)


class Followed(two_tiers.TwoTiers):
    """Follows by all operations what every block stores, and asserts that a prompt finds what it was promised."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.stores = {DEVICE: {}, HOST: {}}
        self.coming = {}

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        if isinstance(answers, list):
            for grant in answers:
                self.follow(grant.ops)
            starts, codes = self.starts(seqs[0]), self.codes(seqs[0])
            num_cached = answers[0].num_cached // self.block_size
            stores = {**self.stores[DEVICE], **self.coming}
            assert [stores.get(start) for start in starts[:num_cached]] == codes[:num_cached]
            for start in starts[num_cached:]:
                self.stores[DEVICE].pop(start, None)
        return answers

    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        if hasattr(answer, "ops"):
            self.follow(answer.ops)
            for seq in batch:
                for start in self.starts(seq)[seq.prompt_len // self.block_size :]:
                    self.stores[DEVICE].pop(start, None)
        return answer

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        if hasattr(answer, "ops"):
            self.follow(answer.ops)
        return answer

    def computed(self, seq, num_tokens):
        super().computed(seq, num_tokens)
        full = min(num_tokens, seq.prompt_len) // self.block_size
        self.coming.update(zip(self.starts(seq)[:full], self.codes(seq)[:full], strict=True))

    def check(self):
        """A plan is made: what it computes is stored before the next one."""
        super().check()
        self.stores[DEVICE].update(self.coming)
        self.coming.clear()

    def follow(self, ops):
        for source, target, copies in ops.moves:
            for src, dst, _ in copies:
                self.stores[target][dst] = self.stores[source].get(src)

    def starts(self, seq):
        return [extent.start for extent in self.table(seq)]

    def codes(self, seq):
        return PrefixIndex(0).chain(seq.content[: seq.prompt_len // self.block_size * self.block_size])


@pytest.mark.parametrize("preemption", [Recompute, Swap])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("block_size", [1, 4])
def test_what_is_read_back_from_the_host_is_what_was_written(block_size, scheduler, preemption):
    for seed in range(4):
        requests = workload(seed, kind=("single", "samples", "beams", "single")[seed], gap_ps=10**9)
        if block_size > 1:
            requests = [r._replace(prompt_ids=r.prompt_ids[::block_size], tokens_per_id=block_size) for r in requests]
        policy = Followed(PoolSpec(400, MAX_LEN, host(300)), block_size=block_size)
        run(requests, policy, scheduler, preemption)
        assert policy.counters()["host_read_blocks"] > 0


def test_a_second_tier_finds_more_than_one():
    requests = workload(0, 60, gap_ps=10**10)
    pool = PoolSpec(200, MAX_LEN, host(2000))
    one, two = PrefixCaching(pool, 8), two_tiers.TwoTiers(pool, 8)
    prefilled = [run(requests, policy).spans.columns()["prefill_tokens"].sum() for policy in (one, two)]
    assert prefilled[1] < prefilled[0]
    assert prefilled[0] - prefilled[1] <= 8 * two.counters()["host_read_blocks"]
    assert two.counters()["host_written_blocks"] <= two.counters()["evictions"]


def test_counts_of_its_own():
    policy = counting.CountingPaged(POOL, block_size=8)
    run([Request(0, 0, 12, 20, num_seqs=2)], policy)
    counters = policy.counters()
    assert counters["copies_on_write"] == 1
    # each of two sequences ends with 31 tokens: blocks from token 1 and 9, 17, 25; 31 - 12 = 19, 14 and 6 old
    assert {name: n for name, n in counters.items() if n} == {
        "copies_on_write": 1,
        "blocks_of_age_16": 4,
        "blocks_of_age_0": 4,
    }
