"""The sensitivity of a capacity to costs and arrivals."""

from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from tiny import MS, FastMillisecond

from testbed.core.errors import InputError
from testbed.cost.model import UNBOUNDED, Affine
from testbed.experiments.runs.compose import configured
from testbed.run.config import Slo
from testbed.run.cost_words import (
    costs_in_words,
    left_out_error,
    left_out_rows,
    served_loads,
)
from testbed.run.machine import cost_of
from testbed.run.parts import Part
from testbed.run.simulate import run
from testbed.run.workload import make_workload
from testbed.study.cost_spread import COST_ERROR, draws, error_of, rule
from testbed.study.knee import highest_rate
from testbed.study.sensitivity import (
    MOVED_S,
    at_rate,
    capacity_intervals,
    check_scalable,
    figures_of,
    moved_workload,
    run_intervals,
    share_inside,
    variations,
    with_costs,
)

WORDS = [
    *(
        "gpu=h200",
        "trace=random",
        "trace.input_len=400",
        "trace.output_len=20",
        "trace.input_ratio=0.5",
    ),
    *("slo.ttft_s=0.004", "arrivals.duration_s=20", "arrivals.rate=8"),
]


SHORT = Part("testbed.engine.arrivals.Poisson", {"rate": 8.0, "duration_s": 5.0})


class ThreeMilliseconds(FastMillisecond):
    """All times of FastMillisecond, three times as long."""

    def iteration(self, work):
        return 3 * MS

    def decode(self, work):
        return Affine(3 * MS, 0, UNBOUNDED)


@pytest.fixture(scope="module")
def config():
    return configured(WORDS)


def of(config, cost):
    return replace(config, cost=Part(lambda model, server: cost()))


BALANCED = ("replicas=2", "router=vllm_balancer", "router.interval_s=0.2", "arrivals.rate=60")


@pytest.mark.parametrize("more", [(), BALANCED])
def test_costs_are_scaled_as_if_every_iteration_took_longer(more):
    config = configured([*WORDS, *more])
    scaled = run(with_costs(of(config, FastMillisecond), 3.0)).summary
    real = run(of(config, ThreeMilliseconds)).summary
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert 3 * scaled[name]["mean"] == pytest.approx(real[name]["mean"], rel=1e-6)
    assert scaled["slo"]["share_inside"] == real["slo"]["share_inside"]
    assert 0 < real["slo"]["share_inside"] < 1


def test_moved_arrivals_are_the_same_requests_at_other_times(config):
    workload = make_workload(at_rate(config, 200.0))
    moved = moved_workload(workload, seed=3)
    assert (np.diff(moved.arrival_ps) >= 0).all()
    apart_ps = np.abs(np.sort(moved.arrival_ps) - workload.arrival_ps)
    assert 0 < apart_ps.max() <= MOVED_S * 1e12
    assert sorted(moved.rows.prompt_len) == sorted(workload.rows.prompt_len)
    assert moved.rows.prompt_len.tolist() != workload.rows.prompt_len.tolist()
    assert moved_workload(workload, seed=4).arrival_ps.tolist() != moved.arrival_ps.tolist()


def test_the_intervals_have_what_was_found_in_them(config):
    """Costs alone limit this server: 3% of them are 3% of its rate, but for the search's steps."""
    config = replace(config, slo=Slo(ttft_s=0.3, tpot_s=0.05), arrivals=SHORT)
    highest = highest_rate(lambda rate: share_inside(at_rate(config, rate)), 0.9, 1.0, 20.0, 0.01)
    intervals = capacity_intervals(config, highest, 0.9, 0.01)
    assert intervals.rate[0] <= highest <= intervals.rate[1]
    assert 1.03 < intervals.rate[1] / intervals.rate[0] < 1.2
    low, high = intervals.share_inside
    assert low < share_inside(at_rate(config, highest)) <= high
    assert len(list(variations(config))) == 22


def test_intervals_of_a_run_enclose_its_figures(config):
    """If an iteration of decodes takes a millisecond at any load, the time per token has the 3%
    of the costs, and moved arrivals change other figures too.
    """
    loaded = of(replace(config, arrivals=SHORT), FastMillisecond)
    summary = run(loaded).summary
    figures, intervals = figures_of(summary), run_intervals(loaded, summary)
    assert intervals.keys() == figures.keys()
    for name, (low, high) in intervals.items():
        assert low <= figures[name] <= high
    of_tokens = figures["tpot_mean_s"]
    assert intervals["tpot_mean_s"] == pytest.approx((0.97 * of_tokens, 1.03 * of_tokens))
    low, high = intervals["ttft_mean_s"]
    assert high - low > 0.06 * figures["ttft_mean_s"]


def test_runs_with_times_of_their_own_are_refused(config):
    with pytest.raises(InputError, match="faults: --sensitivity"):
        check_scalable(replace(config, replicas=2, faults="engine 1 at 5 s"))
    loop = configured(["arrivals=closed_loop", "trace=random"])
    with pytest.raises(InputError, match="arrivals: "):
        check_scalable(loop)


def test_derived_costs_are_moved_by_what_such_costs_were_off_by():
    derived = configured([*WORDS, "gpu=l40s"])
    error = error_of(derived)
    rows = [row for row in left_out_rows() if row["gpu"] == "l40s" and row["num_gpus"] == "1"]
    rows = [row for row in rows if (row["way"], row["source_by"]) == ("other GPU", "measured")]
    assert error == pytest.approx(median(abs(float(row["latency_percent"])) for row in rows) / 100)
    assert {1 - error, 1 + error} <= {draw.slowness for draw in draws(derived)}
    assert f"{error:.0%}" in rule(derived)
    assert error_of(configured(WORDS)) == COST_ERROR


def test_no_costs_are_moved_by_less_than_measured_ones():
    """Profiles of other models on this GPU are 1% off this project's own, which are off too."""
    derived = configured([*WORDS, "model=qwen3-8b", "gpu=h200"])
    assert left_out_error(cost_of(derived), derived.server) < COST_ERROR
    assert error_of(derived) == COST_ERROR
    assert rule(derived) == rule(configured(WORDS))
    assert served_loads() in costs_in_words(derived)
