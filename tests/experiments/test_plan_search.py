"""A plan's searches against their plain version, which simulates every deployment."""

import gc
import random
from pathlib import Path

import pytest

from testbed.experiments.plan.at_capacity import difference_at_capacity
from testbed.experiments.plan.cost_errors import NOT_COMPARABLE, error_between
from testbed.experiments.plan.deployment_plan import Request, planned
from testbed.experiments.plan.prices import GpuHours, Prices
from testbed.experiments.plan.rows import LEAST, rows_of
from testbed.experiments.plan.shown import lines_of
from testbed.experiments.plan.space import candidate_of, deployments
from testbed.experiments.plan.verdicts import Keeps, per_million
from testbed.study.cost_spread import error_of

GPUS = ("a100-40gb", "a100-80gb", "a10g", "l40s", "h100-80gb", "h200", "a40", "l4")
SMALL = (
    "model=opt-13b scheduler.max_num_batched_tokens=1024,2048 slo.ttft_s=1 slo.tpot_s=0.1 "
    "trace=random trace.input_len=1500 trace.input_ratio=0.2 "
    "trace.output_len=16"
)


def drawn(seed):
    """The words and prices of a space of at least 60 deployments."""
    rng = random.Random(seed)
    gpus = rng.sample(GPUS, 4)
    budgets = rng.sample((512, 1024, 2048, 4096, 8192), 2)
    words = [
        f"model={rng.choice(('llama-3-8b', 'qwen2.5-7b'))}",
        f"gpu={','.join(gpus)}",
        f"server.num_gpus={rng.choice(('1,2', '2,4', '1,4'))}",
        f"replicas={rng.choice(('1,2', '1,3', '2,3'))}",
        f"scheduler.max_num_batched_tokens={budgets[0]},{budgets[1]}",
        "++model.kv_dtype_bytes=1,2",
        f"slo.ttft_s={rng.choice((1, 2, 4))}",
        f"slo.tpot_s={rng.choice((0.05, 0.1))}",
        "trace=random trace.input_len=4000 trace.output_len=64 trace.input_ratio=0.5",
        "arrivals.duration_s=5",
    ]
    prices = {gpu: rng.uniform(0.5, 4) for gpu in gpus}
    return " ".join(words), Prices(Path("drawn"), "2026-11-26", "USD", prices)


def both(words, prices, runs, *, seeds=(0, 1), precision=0.2):
    """The plan, which counts every run in its folder, and the plan of every deployment."""
    request = (tuple(words.split()), 0.9, seeds, precision, None, prices, runs)
    plan = planned(Request(*request), ignored)
    assert plan.num_simulations == len(list(runs.glob("*/summary.json")))
    return plan, planned(Request(*request, everything=True), ignored)


def ignored(_):
    """Progress without a reader."""


def check_optimum(plan, everything):
    """Both find the same cheapest deployments, and say the same of what both have examined."""
    assert plan.ranked[0].costs == everything.ranked[0].costs
    assert plan.ranked[0].inside == everything.ranked[0].inside
    costs = {verdict.candidate.deployment.words: verdict.costs for verdict in everything.ranked}
    for verdict in plan.ranked:
        assert verdict.costs == costs[verdict.candidate.deployment.words]


@pytest.mark.parametrize(
    "words",
    [
        "gpu=a100-40gb,a40 arrivals.duration_s=3",
        "gpu=a100-40gb replicas=1,2,3 arrivals.duration_s=3 arrivals.rate=4",
        "gpu=a40 replicas=1,2,3 arrivals=closed_loop arrivals.concurrency=4 "
        "arrivals.num_requests=16",
    ],
)
def test_the_search_finds_the_optimum_of_the_enumeration(tmp_path, words):
    search = {"seeds": (0,), "precision": 0.5}
    plan, everything = both(f"{SMALL} {words}", GpuHours(), tmp_path, **search)
    check_optimum(plan, everything)
    assert plan.num_simulations < everything.num_simulations


@pytest.fixture
def usual_collector():
    """Hundreds of runs in one process need the garbage collector, which other tests put off."""
    put_off = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*put_off)


@pytest.mark.slow
@pytest.mark.usefixtures("usual_collector")
@pytest.mark.parametrize(("seed", "rate"), [(0, ""), (1, ""), (2, " arrivals.rate=10")])
def test_a_third_of_the_simulations_finds_the_optimum(tmp_path, seed, rate):
    words, prices = drawn(seed)
    plan, everything = both(words + rate, prices, tmp_path)
    assert len(plan.verdicts) >= 60
    check_optimum(plan, everything)
    counts = plan.num_simulations, everything.num_simulations
    print(f"space {seed}: {counts[0]} of {counts[1]} simulations")
    assert counts[0] <= counts[1] / 3


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ((1200.0, 3300.0, 5200.0), "+1,283% (105 to 9,206)"),  # few requests/s: a wide spread
        ((210.0, 190.0, 205.0), "not distinguishable: +2% (-10 to 15)"),
        ((230.0, 220.0, 234.0), "+15% (7 to 23)"),
        ((200.0, 190.0, 205.0), "equal"),
    ],
)
def test_a_dearer_deployment_is_so_by_the_ratio_of_the_costs(costs, said):
    best, other = (
        Keeps(
            None, 2.0, (), [per_million(2.0, cost) for cost in of_seeds], "decode", precision=0.05
        )
        for of_seeds in ((200.0, 190.0, 205.0), costs)
    )
    assert difference_at_capacity(other, best) == said


def test_the_cost_of_a_request_is_that_at_the_mean_rate():
    """2 a GPU hour: at 1 and 3 requests/s on average 2, so 277.8 a million; not their mean, 370."""
    verdict = Keeps(None, 2.0, (), (1.0, 3.0), "decode", precision=0.05)
    assert verdict.cost.mean == pytest.approx(2.0 / 3600 / verdict.rate.mean * 1e6)
    assert verdict.rate.mean == 2.0
    assert verdict.cost.half_width / verdict.cost.mean == pytest.approx(verdict.rate.half_width / 2)
    alike = Keeps(None, 2.0, (), (3.0, 3.0), "decode", precision=0.05)
    assert alike.rate.half_width == pytest.approx(0.15)  # the step of the search


def test_costs_of_another_way_name_no_cheapest_within_their_errors(tmp_path):
    """Those of this model are measured on an H200, and derived for an H100 with 17% of error. A
    search and a plan of every deployment take the same runs.
    """
    words = "model=opt-13b gpu=h200,h100-80gb slo.ttft_s=1 arrivals.duration_s=3 trace=random"

    def plan_at(dearer, everything):
        """The plan if an hour of the H100 costs `dearer` times as much."""
        prices = {"h200": 1.0, "h100-80gb": dearer}
        of = Prices(Path("drawn"), "2026-11-26", "USD", prices)
        asked = ("+system=vllm-v1", *words.split())
        return planned(Request(asked, 0.9, (0,), 0.5, None, of, tmp_path, everything), ignored)

    costs = {
        verdict.candidate.deployment.name: verdict.costs[0] for verdict in plan_at(1, True).ranked
    }
    ratio = costs["gpu=h200"] / costs["gpu=h100-80gb"]
    for everything in (False, True):
        far = plan_at(1.5 * ratio, everything)
        assert any(line.startswith("cheapest: gpu=h200") for line in lines_of(far))
        near = plan_at(1.1 * ratio, everything)
        (line,) = (line for line in lines_of(near) if line.startswith("cheapest: "))
        assert line.startswith("cheapest: not comparable: gpu=h200; gpu=h100-80gb")
        assert [row.difference.split(" (")[0] for row in rows_of(near)] == [LEAST, NOT_COMPARABLE]


@pytest.mark.parametrize(
    ("words", "is_of_both"),
    [
        ("gpu=l40s,a100-80gb", True),  # derived from one profile, for two GPUs
        ("gpu=l40s,h200", True),  # derived, and measured
        ("cost=analytic gpu=l40s,a100-80gb", True),
        ("gpu=l40s server.num_gpus=1,2", True),  # tested apart
        ("cost=analytic gpu=l40s server.num_gpus=1,2", True),
        ("gpu=l40s server.memory_utilization=0.8,0.9", False),
        ("gpu=l40s replicas=1,2 router=round_robin", False),
        ("gpu=h200 server.memory_utilization=0.8,0.9", False),
    ],
)
def test_costs_for_two_gpus_have_errors_of_their_own(words, is_of_both):
    one, other = map(candidate_of, deployments(f"model=opt-13b {words}".split()))
    errors = [error_of(candidate.config) for candidate in (one, other)]
    assert error_between(one, other) == (sum(errors) if is_of_both else 0)
    assert min(errors) > 0


def test_a_fleet_with_another_gpu_has_the_larger_error():
    fleet = ["model=opt-13b", "gpu=h200", "replicas=2", "router=round_robin"]
    other = ["+server@servers.1=l40s", "server.num_blocks=2000", "servers.1.num_blocks=500"]
    alike, mixed = (candidate_of(*deployments(words)) for words in (fleet, [*fleet, *other]))
    larger = error_of(mixed.config.of_engine(1))
    assert larger > error_of(alike.config)
    assert error_between(alike, mixed) == error_of(alike.config) + larger
