"""Eight ideas outside the package: they keep the contract, run by name, by public names only; what
each is for.
"""

import ast
import json
import sys
from pathlib import Path

import cheapest_victim
import counting
import example_dropping
import example_scheduler
import numpy as np
import predicted_growth
import pytest
import shortest_remaining
import two_sizes
import two_tiers
import vattention
import window
from histories import keeps_the_contract
from same_runs import check_both_ways, lengths_of
from smallest_prompt import SmallestPrompt
from tiny import analytic, server

from testbed.core.request import PS, Request
from testbed.engine.simulation import simulate
from testbed.experiments.cli.main import main
from testbed.experiments.runs.compose import configured
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.run.build import build
from testbed.run.oracles import with_lengths
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill

HERE = Path(__file__).parent
FILES = sorted(path for path in HERE.glob("*.py") if not path.stem.startswith("test_"))
MAX_LEN = 128
COSTS = {"pages_mapped": 1e-4}
COST = analytic(overhead_s=1e-3, copy_s=1e-5, extra_s=COSTS)
POOL = PoolSpec(600, MAX_LEN, host(400))
POLICIES = {
    "vattention": lambda pool: vattention.VAttention(pool, page_size=32),
    "vattention-unmapping": lambda pool: vattention.VAttention(
        pool, page_size=8, keep_mapped=False
    ),
    "two_sizes": lambda pool: two_sizes.TwoSizes(pool, large=16, small=4, large_share=0.4),
    "window": lambda pool: window.Window(pool, sinks=3, window=30, block_size=4),
    "counting": lambda pool: counting.CountingPaged(pool, block_size=8),
    "half_of_the_prompt": lambda pool: example_dropping.HalfOfThePrompt(pool, block_size=4),
    "two_tiers": lambda pool: two_tiers.TwoTiers(pool, block_size=8),
    "predicted_growth": lambda pool: predicted_growth.PredictedGrowth(pool, 8, output_len=30),
}
SCHEDULERS = (
    SeparatePrefill,
    MixedPrefill,
    ChunkedPrefill,
    example_scheduler.DecodesFirst,
    shortest_remaining.ShortestRemaining,
)
PREEMPTIONS = (Recompute, Swap, cheapest_victim.CheapestVictim)


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
        requests.append(
            Request(
                i,
                arrival_ps=arrival_ps,
                prompt_len=prompt_len,
                output_len=output_len,
                num_seqs=num_seqs,
                beam=beam,
                prompt_ids=ids,
            )
        )
    return requests


def scheduled(policy, scheduler=MixedPrefill, preemption=Recompute, cost=COST):
    limits = {"max_num_batched_tokens": 40, "max_num_seqs": 30}
    return with_lengths(scheduler, {})(policy, preemption(cost), **limits)


def run(requests, policy, scheduler=MixedPrefill, preemption=Recompute, cost=COST):
    serving = scheduled(policy, scheduler, preemption, cost)
    return simulate(requests, serving, cost, MAX_LEN, lengths=lengths_of(serving))


SLOW = pytest.mark.slow
REQUESTS = ("single", "samples", "beams")
# Every pair of a policy, a scheduler and a kind of requests; all three together are slow.
TRIPLES = [
    pytest.param(
        name, scheduler, kind, marks=[] if (place + number) % 3 == REQUESTS.index(kind) else SLOW
    )
    for place, name in enumerate(POLICIES)
    for number, scheduler in enumerate(SCHEDULERS)
    for kind in REQUESTS
]


@pytest.mark.parametrize(("name", "scheduler", "kind"), TRIPLES)
def test_fast_equals_slow(name, scheduler, kind):
    seed = REQUESTS.index(kind)
    requests = workload(seed, size=25, kind=kind)
    preemption = PREEMPTIONS[(SCHEDULERS.index(scheduler) + seed) % 3]

    def make(rule=preemption):
        return scheduled(POLICIES[name](POOL), scheduler, rule)

    schedulers = check_both_ways(requests, make, COST, MAX_LEN)
    assert all(served.policy.usage().held == 0 for served in schedulers)


@pytest.mark.parametrize("scheduler", SCHEDULERS[:3])
def test_the_guides_order_serves_small_prompts_first(scheduler):
    """All come at once, and one runs at a time; the prompts of a class come in order of arrival."""
    lengths = [40, 9, 33, 8, 17]
    requests = [Request(i, 0, prompt_len, 2) for i, prompt_len in enumerate(lengths)]

    def make():
        limits = {"max_num_batched_tokens": 40, "max_num_seqs": 1}
        return scheduler(Paged(POOL), Recompute(COST), order=SmallestPrompt(step=16), **limits)

    check_both_ways(requests, make, COST, MAX_LEN)
    ended = simulate(requests, make(), COST, MAX_LEN).requests.columns()
    _, *rest = ended["request_id"][np.argsort(ended["first_token_ps"])].tolist()
    assert rest == sorted(rest, key=lambda i: (-(-lengths[i] // 16), i))


@pytest.mark.parametrize("name", POLICIES)
def test_plug_in_policies_keep_the_contract(name, golden):
    keeps_the_contract(golden, name, POLICIES[name])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_plug_ins_use_public_names_only(path):
    text = path.read_text()
    names = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case (
                ast.Attribute(attr=name)
                | ast.Name(id=name)
                | ast.FunctionDef(name=name)
                | ast.arg(arg=name)
            ):
                names.append(name)
            case ast.ImportFrom(module=module, names=aliases):
                names += [*(module or "").split("."), *(alias.name for alias in aliases)]
            case ast.Import(names=aliases):
                names += [part for alias in aliases for part in alias.name.split(".")]
    ours = {name for name in names if name.startswith("_") and not name.endswith("__")}
    assert ours <= {"_", "_replace"}  # a NamedTuple's public method


COMMANDS = {
    "vattention": (
        "policy=vattention:VAttention",
        "policy.page_size=256",
        "+cost.software.extra_s={pages_mapped: 1e-4}",
    ),
    "two_sizes": ("policy=two_sizes:TwoSizes", "policy.large_share=0.3"),
    "window": ("policy=custom", "policy._target_=window.Window", "+policy.window=128"),
    "shortest_remaining": (
        "scheduler=custom",
        "scheduler._target_=shortest_remaining.ShortestRemaining",
    ),
    "cheapest_victim": ("preemption=custom", "preemption._target_=cheapest_victim.CheapestVictim"),
    "two_tiers": ("policy=custom", "policy._target_=two_tiers.TwoTiers", "+policy.block_size=32"),
    "predicted_growth": ("policy=predicted_growth:PredictedGrowth", "policy.share=0.4"),
    "counting": ("policy=custom", "policy._target_=counting.CountingPaged", "workload.num_seqs=2"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_plug_ins_run_from_the_command_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    options = ("arrivals.duration_s=5", "outputs=summary", "hydra.run.dir=a")
    assert main(["run", *COMMANDS[name], *options]) == 0, capsys.readouterr()
    counters = json.loads((tmp_path / "a" / "summary.json").read_text())["counters"]
    if name in ("vattention", "counting"):
        assert sum(counters.values()) > 0


@pytest.mark.parametrize("keep_mapped", [True, False])
def test_mapped_pages_add_the_configured_time(keep_mapped):
    requests = [r._replace(arrival_ps=0) for r in workload(0)]
    policies = [vattention.VAttention(POOL, 16, keep_mapped) for _ in range(2)]
    free = analytic(overhead_s=1e-3, extra_s={"pages_mapped": 0.0})
    predicted = analytic(overhead_s=1e-3, extra_s=COSTS)
    busy = [
        run(requests, p, cost=c).totals.busy_ps
        for p, c in zip(policies, (free, predicted), strict=True)
    ]
    assert busy[1] - busy[0] == policies[0].num_mapped * round(1e-4 * PS) > 0


def tables_by_num_slots(policy, request):
    """The table that the only sequence of a request has for so many slots, and the totals of its
    run.
    """
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
    tables = tables_by_num_slots(policy, Request(0, arrival_ps=0, prompt_len=10, output_len=60))[0]
    assert kept == (4, 16)
    assert tables[17] == [
        tables[16][i] for i in (0, 2, 3, 1)
    ]  # the oldest block behind the sink is written over
    assert tables[21] == [tables[16][i] for i in (0, 3, 1, 2)]
    assert all(table[0] == tables[16][0] for table in tables.values())


def mean_latency(recorder):
    columns = recorder.requests.columns()
    return float(np.mean(columns["finish_ps"] - columns["arrival_ps"]))


def test_shortest_remaining_first_lowers_the_mean_latency():
    requests = workload(4, 80, gap_ps=10**8)
    fcfs, shortest = (
        run(requests, POLICIES["counting"](POOL), s) for s in (MixedPrefill, SCHEDULERS[-1])
    )
    assert mean_latency(shortest) < 0.9 * mean_latency(fcfs)


def test_cheapest_victim_needs_less_time_than_the_last():
    requests = workload(3, 60, gap_ps=10**8)
    cost = analytic(server(fp16_flops=1e9, host_bandwidth=1e6), overhead_s=1e-4, copy_s=1e-5)
    rules = Swap, PREEMPTIONS[-1]
    last, cheapest = (
        run(requests, POLICIES["counting"](POOL), preemption=rule, cost=cost) for rule in rules
    )
    assert cheapest.totals.recomputes + cheapest.totals.swaps > 0
    assert cheapest.totals.busy_ps < last.totals.busy_ps


def test_admissions_that_leave_predicted_blocks_free_preempt_less():
    requests = workload(3, 60, gap_ps=10**8)
    plain = run(requests, POLICIES["counting"](POOL)).totals
    predicting = run(requests, POLICIES["predicted_growth"](POOL)).totals
    assert 0 <= predicting.recomputes < plain.recomputes / 2
    assert predicting.generated == plain.generated


@pytest.mark.parametrize(("host_bandwidth", "way"), [(1e12, "swaps"), (1e6, "recomputes")])
def test_victim_recovers_in_the_cheaper_way(host_bandwidth, way):
    cost = analytic(server(fp16_flops=1e9, host_bandwidth=host_bandwidth))
    totals = run(
        workload(3, gap_ps=10**8), POLICIES["counting"](POOL), preemption=PREEMPTIONS[-1], cost=cost
    ).totals
    assert getattr(totals, way) > 0
    assert totals.swaps + totals.recomputes == getattr(totals, way)


def test_plug_in_counters_reach_the_summary():
    policy = counting.CountingPaged(POOL, block_size=8)
    run([Request(0, arrival_ps=0, prompt_len=12, output_len=20, num_seqs=2)], policy)
    # each of two sequences ends with 31 tokens: blocks from token 1 and 9, 17, 25; 31 - 12 = 19, 14
    # and 6 old
    counted = {name: n for name, n in policy.counters().items() if n}
    assert counted == {"copies_on_write": 1, "blocks_of_age_16": 4, "blocks_of_age_0": 4}


@pytest.mark.parametrize(
    ("policy", "words", "is_noted"),
    [
        ("counting:CountingPaged", (), True),
        ("counting:CountingPaged", ("fast_forward=false",), False),
        ("paged", (), False),
    ],
)
def test_a_run_says_what_only_a_plug_in_promises(policy, words, is_noted):
    """Steps that are taken at once are those that would follow each other, as the policy says."""
    note = build(configured([f"policy={policy}", *words])).description["policy_note"]
    assert (note is not None) == is_noted
