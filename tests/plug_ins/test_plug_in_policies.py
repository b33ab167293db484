"""Seven ideas outside the package: checked after every plan, fast equal to slow, run by name, by public names only."""

import ast
import json
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import cheapest_victim
import counting
import numpy as np
import pytest
import shortest_remaining
import two_sizes
import two_tiers
import vattention
import window

from experiments.commands.cli import dispatch
from testbed.core.errors import InputError
from testbed.core.request import PS, Request
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.profile import Choices, ProfileCost, read_profile
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sim.simulation import simulate

HERE = Path(__file__).parent
FILES = sorted(path for path in HERE.glob("*.py") if not path.stem.startswith("test_"))
MAX_LEN = 128
MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, MAX_LEN)
SERVER = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1)
PRICES = {"pages_mapped": 1e-4}
COST = AnalyticCost(MODEL, SERVER, Efficiencies(overhead_s=1e-3, copy_s=1e-5, extra_s=PRICES))
POOL = PoolSpec(600, MAX_LEN, host(400))
POLICIES = {
    "vattention": lambda pool: vattention.VAttention(pool, page_size=32),
    "vattention-unmapping": lambda pool: vattention.VAttention(pool, page_size=8, keep_mapped=False),
    "two_sizes": lambda pool: two_sizes.TwoSizes(pool, large=16, small=4, large_share=0.4),
    "window": lambda pool: window.Window(pool, sinks=3, window=30, block_size=4),
    "counting": lambda pool: counting.CountingPaged(pool, block_size=8),
    "two_tiers": lambda pool: two_tiers.TwoTiers(pool, block_size=8),
}
SCHEDULERS = (SeparatePrefill, MixedPrefill, ChunkedPrefill, shortest_remaining.ShortestRemaining)
PREEMPTIONS = (Recompute, Swap, cheapest_victim.CheapestVictim)


def checked(scheduler_class):
    """The scheduler, with the policy's invariants and every table checked after each plan."""

    class Checked(scheduler_class):
        def plan(self):
            plan, policy = super().plan(), self.policy
            policy.check()
            spans = []
            for group in self.residents.running.values():
                for seq in group.resident:
                    table = policy.table(seq)
                    assert seq.stored <= seq.room
                    assert policy.stored(seq.room) <= sum(extent.length for extent in table)
                    spans += [(extent.start, extent.start + extent.length) for extent in table]
            spans.sort()
            assert policy.shares or all(end <= start for (_, end), (start, _) in pairwise(spans))
            return plan

    return Checked


def workload(seed, size=40, gap_ps=2 * 10**9, kind="single"):
    """Requests that overload the pool; prompts begin as one of a few stories."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.integers(0, gap_ps + 1, size)).tolist()
    requests = []
    for i, arrival_ps in enumerate(arrivals):
        prompt_len, output_len, shared = (int(n) for n in rng.integers(1, 65, 3))
        ids = tuple(1000 * (i % 3) + k if k < shared else -1 - i for k in range(prompt_len))
        num_seqs = 1 if kind == "single" else int(rng.choice([1, 2, 3]))
        beam = kind == "beams" and num_seqs > 1
        requests.append(Request(i, arrival_ps, prompt_len, output_len, num_seqs, beam, prompt_ids=ids))
    return requests


def run(requests, policy, scheduler=MixedPrefill, preemption=Recompute, cost=COST, **options):
    scheduler = checked(scheduler)(policy, preemption(cost), max_num_batched_tokens=40, max_num_seqs=30)
    return simulate(requests, scheduler, cost, MAX_LEN, **options)


def assert_same(fast, slow):
    for field in fields(fast.totals):
        assert getattr(fast.totals, field.name) == getattr(slow.totals, field.name), field.name
    assert (fast.end_ps, fast.rejections) == (slow.end_ps, slow.rejections)
    for name, column in fast.requests.columns().items():
        assert column.tolist() == slow.requests.columns()[name].tolist(), name


@pytest.mark.parametrize("kind", ["single", "samples", "beams"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", POLICIES)
def test_fast_equals_slow(name, scheduler, kind):
    for seed, preemption in enumerate(PREEMPTIONS):
        requests = workload(seed, kind=kind)
        policies = POLICIES[name](POOL), POLICIES[name](POOL)
        fast, slow = (
            run(requests, policy, scheduler, preemption, fast_forward=fast_forward)
            for policy, fast_forward in zip(policies, (True, False), strict=True)
        )
        assert_same(fast, slow)
        assert fast.totals.finished + fast.totals.rejected == len(requests)
        assert policies[0].counters() == policies[1].counters()
        assert policies[0].usage().held == 0


@pytest.mark.parametrize("name", ["vattention", "two_sizes", "counting", "two_tiers"])
def test_spans_are_taken_at_once(name):
    fast = run(workload(0, 10), POLICIES[name](POOL))
    assert len(fast.spans) < fast.totals.iterations


@pytest.mark.parametrize("name", POLICIES)
def test_the_contract_is_kept(name):
    try:
        from testbed.contract import check_policy
    except ImportError as error:
        pytest.skip(f"testbed.contract does not import: {error}")
    assert check_policy(POLICIES[name], max_examples=60) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_plug_in_is_short_and_uses_public_names_only(path):
    text = path.read_text()
    assert len(text.splitlines()) < 150
    names = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                names.append(name)
            case ast.ImportFrom(module=module, names=aliases):
                names += [*(module or "").split("."), *(alias.name for alias in aliases)]
            case ast.Import(names=aliases):
                names += [part for alias in aliases for part in alias.name.split(".")]
    ours = {name for name in names if name.startswith("_") and not name.endswith("__")}
    assert ours <= {"_", "_replace"}  # a NamedTuple's public method


COMMANDS = {
    "vattention": ("policy=custom", "policy._target_=vattention.VAttention", "+policy.page_size=256",
                   "+cost.efficiencies.extra_s={pages_mapped: 1e-4}"),
    "two_sizes": ("policy=custom", "policy._target_=two_sizes.TwoSizes", "+policy.large_share=0.3"),
    "window": ("policy=custom", "policy._target_=window.Window", "+policy.window=128"),
    "shortest_remaining": ("scheduler=custom", "scheduler._target_=shortest_remaining.ShortestRemaining"),
    "cheapest_victim": ("preemption=custom", "preemption._target_=cheapest_victim.CheapestVictim"),
    "two_tiers": ("policy=custom", "policy._target_=two_tiers.TwoTiers", "+policy.block_size=32"),
    "counting": ("policy=custom", "policy._target_=counting.CountingPaged", "workload.num_seqs=2"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_line_runs_it(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    options = ("arrivals.duration_s=20", "outputs=summary", "hydra.run.dir=a")
    assert dispatch(["run", *COMMANDS[name], *options]) == 0, capsys.readouterr()
    counters = json.loads((tmp_path / "a" / "summary.json").read_text())["counters"]
    if name in ("vattention", "counting"):
        assert sum(counters.values()) > 0


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
