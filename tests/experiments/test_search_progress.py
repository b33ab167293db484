"""The progress of `testbed capacity`, its usual arrivals, and intervals that have its step."""

import json
import re

import pytest

from testbed.engine.arrivals import Poisson
from testbed.experiments.cli import exit_codes
from testbed.experiments.runs.search_progress import SearchProgress
from testbed.study.capacity_search import Capacities, Capacity, usual_duration
from testbed.study.knee import highest_rate
from testbed.study.replications import Interval, interval, within_step

SERVER = ("policy=contiguous_max", "slo.ttft_s=0.5", "--precision", "0.5", "--seeds", "1")


@pytest.mark.parametrize(("low", "high", "precision"), [(0.5, 2, 0.02), (12, 20, 0.05), (1, 4, 9)])
def test_a_search_takes_as_many_rates_as_it_expects(low, high, precision):
    tried = list[float]()

    def inside(rate):
        tried.append(rate)
        return 1.0 if rate < (low * high) ** 0.5 * 0.999 else 0.0

    highest_rate(inside, 0.9, low, high, precision)
    assert SearchProgress(1, low, high, precision).expected == len(tried)


def test_its_line_counts_the_rates_of_those_that_are_expected_or_more():
    progress = SearchProgress(2, 1, 4, 9)
    progress.began(1)
    assert progress.of_seed == "seed 1: "
    assert str(progress) == f"searching: 0 of about {progress.expected} rates simulated"
    for _ in range(progress.expected + 1):
        progress.ended()
    count = progress.expected + 1
    assert str(progress) == f"searching: {count} of about {count} rates simulated"


def test_the_first_line_comes_before_the_first_rate(testbed):
    code, _, progress = testbed("capacity", *SERVER, "arrivals.duration_s=20")
    first, second, *_ = progress.splitlines()
    assert code == 0
    assert first == "capacity: about 4 rates for one seed, a line for each"
    assert "req/s" in second


def test_each_rate_of_several_seeds_names_its_seed(testbed):
    words = (*SERVER[:-1], "2", "arrivals.duration_s=20")
    code, answer, progress = testbed("capacity", *words)
    rates = [line for line in progress.splitlines() if "inside, " in line]
    seeds = [line.partition(":")[0] for line in rates]
    assert code == 0
    assert seeds == sorted(seeds)
    assert set(seeds) == {"seed 0", "seed 1"}
    for line in answer.splitlines():
        if found := re.search(r"in the second half of the arrivals (\S+) req/s arrive and", line):
            assert float(found[1]) > 0
            break
    else:
        pytest.fail("no seed says what arrives")


def test_a_rate_has_five_minutes_of_arrivals_unless_one_says_otherwise(testbed, tmp_path):
    _, _, progress = testbed("capacity", *SERVER, "trace=random", "trace.output_len=1")
    assert "arrivals.duration_s=300 each" in progress
    paths = (tmp_path / "runs" / "capacity").glob("*/config.yaml")
    assert all("duration_s: 300" in path.read_text() for path in paths)


def test_python_has_the_same_five_minutes():
    assert usual_duration((), {}) == ["arrivals.duration_s=300"]
    assert usual_duration((), {"arrivals": "gamma"}) == ["arrivals.duration_s=300"]
    assert usual_duration((), {"duration_s": 3600}) == []
    assert usual_duration(("arrivals.duration_s=3600",), {}) == []
    assert usual_duration((), {"arrivals": (Poisson, {"duration_s": 3600})}) == []


def test_a_server_that_rejects_every_request_keeps_no_rate(testbed):
    words = (*SERVER, "trace=random", "trace.input_len=3000", "arrivals.duration_s=20")
    code, _, error = testbed("capacity", *words)
    assert code == exit_codes.NO
    assert "100% of the requests are longer" in error
    assert "req/s:" not in error  # no rate was tried


def test_an_objective_that_an_idle_server_misses_is_refused_before_any_rate(testbed):
    words = ("policy=contiguous_max", "slo.tpot_s=0.0001", "arrivals.duration_s=20")
    code, printed, error = testbed("capacity", *words)
    assert (code, printed) == (exit_codes.NO, "")
    assert "0.0001 s a token on an idle engine" in error
    assert "req/s:" not in error


def test_the_answer_names_the_requests_that_no_rate_serves(testbed):
    words = ("policy=contiguous_max", "slo.ttft_s=5", "--precision", "0.5", "--seeds", "1")
    trace = ("trace=guidellm", "trace.prompt_tokens=1700", "trace.prompt_tokens_stdev=200")
    few = (*words, *trace, "trace.output_tokens=20", "arrivals.duration_s=60")
    code, printed, _ = testbed("capacity", *few, "--share", "0.8", "--json")
    answer = json.loads(printed)
    assert code == 0
    assert 0.02 < answer["too_long"] < 0.1
    assert "longer than the server takes" in testbed("capacity", *few, "--share", "0.8")[1]


def test_an_interval_is_no_narrower_than_the_step():
    same = [Capacity(2.0, 0.9, (), precision=0.05) for _ in range(3)]
    capacities = Capacities(dict(enumerate(same)))
    assert capacities.rate == Interval(2.0, 0.1, 3)
    assert within_step(interval([1.0, 2.0, 3.0]), 0.5).half_width == pytest.approx(
        interval([1.0, 2.0, 3.0]).half_width + 0.5
    )
    assert within_step(interval([2.0]), 0.1).half_width is None


def test_the_answer_names_its_step(testbed):
    words = ("policy=contiguous_max", "slo.ttft_s=0.5", "arrivals.duration_s=20")
    _, printed, _ = testbed("capacity", *words, "--precision", "0.5", "--seeds", "2", "--json")
    answer = json.loads(printed)
    assert answer["step"] == max(of_seed["rate"] for of_seed in answer["seeds"]) / 2
    assert answer["half_width"] >= answer["step"]
