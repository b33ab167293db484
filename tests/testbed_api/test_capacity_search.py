"""The search for a server's capacity."""

import pandas
import pytest

import testbed
from testbed.core.errors import InputError
from testbed.study.knee import NoRate, NotSustained

SERVER = ("model=llama-3-8b", "gpu=l4", "+system=vllm-v1", "trace=random", "trace.output_len=20")


def test_a_wide_first_guess_steps_over_no_rate_that_keeps_the_objectives():
    """At a thirtieth of the lower guess no request would arrive in this time."""
    tried = {}
    found = testbed.capacity(
        *SERVER, e2e_s=2, share=0.8, duration_s=15, low=8, high=80, seen=tried.__setitem__
    )
    assert tried[8] < 0.8
    assert 0.5 < found.rate < 8


def test_objectives_that_no_queue_misses_end_the_search_early():
    """The time between tokens of a full server is that of one with a longer queue."""
    tried = []
    with pytest.raises(NoRate, match="they limit nothing"):
        testbed.capacity(
            *SERVER, itl_s=10, duration_s=10, low=2, high=8, seen=lambda rate, _: tried.append(rate)
        )
    assert len(tried) <= 4
    found = testbed.capacity(*SERVER, itl_s=10, ttft_s=1, duration_s=10, low=2, high=8)
    assert max(rate for rate, *_ in found.points) <= max(tried)


def test_an_objective_in_milliseconds_is_refused_before_any_run():
    tried = []
    with pytest.raises(InputError) as refusal:
        testbed.capacity(
            *SERVER, ttft_s=500, duration_s=30, seen=lambda rate, _: tried.append(rate)
        )
    assert (refusal.value.key, tried) == ("slo.ttft_s", [])
    assert "did you mean 0.5?" in refusal.value.problem


TOO_LONG = ("trace.prompt_tokens=900", "trace.prompt_tokens_stdev=80", "trace.output_tokens=20")
LONG = (*SERVER[:3], "trace=guidellm", *TOO_LONG, "model.max_len=1024")


def test_too_long_requests_are_counted_by_their_share_of_the_trace_at_every_rate():
    """Rates at which the server is idle keep the same share, whatever few requests they have."""
    tried = {}
    found = testbed.capacity(
        *LONG, e2e_s=5, share=0.8, precision=0.5, duration_s=20, seen=tried.__setitem__
    )
    assert 0.05 < found.too_long < 0.15
    assert max(tried.values()) == pytest.approx(1 - found.too_long)
    summary = testbed.simulate(*LONG, "slo.e2e_s=5", duration_s=20, rate=found.rate).summary
    requests = summary["requests"]
    taken = requests["arrived"] - requests["rejected"]
    inside = summary["slo"]["share_inside"] * requests["arrived"] / taken
    assert tried[found.rate] == pytest.approx(inside * (1 - found.too_long))


def test_a_share_that_too_long_requests_leave_to_no_rate_is_refused_before_any_run():
    tried = []
    with pytest.raises(NotSustained, match=r"longer than the 1,024 tokens") as refusal:
        testbed.capacity(
            *LONG, e2e_s=5, share=0.95, duration_s=20, seen=lambda rate, _: tried.append(rate)
        )
    assert (refusal.value.key, tried) == ("share", [])


COMMAND = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
OF_COMMAND = {"from_vllm": COMMAND, "gpu": "h100-80gb", "trace": "random", "duration_s": 20}


def test_an_objective_that_no_rate_keeps_is_refused_before_any_run():
    tried = []
    with pytest.raises(NotSustained, match="on an idle engine") as refusal:
        testbed.capacity(**OF_COMMAND, ttft_s=1e-4, seen=lambda rate, _: tried.append(rate))
    assert (refusal.value.key, tried) == ("slo", [])


def test_the_requests_of_a_table_have_bounds_too():
    table = pandas.DataFrame({"prompt_len": [30, 40], "output_len": [5, 6]})
    with pytest.raises(NotSustained, match="on an idle engine"):
        testbed.capacity("model=llama-3-8b", trace=table, ttft_s=1e-4)


def test_a_search_prints_the_notes_of_its_words_once(capsys):
    words = ("trace.output_len=9", "trace.output_len=5")
    options = {**OF_COMMAND, "duration_s": 3, "ttft_s": 1, "low": 2, "high": 60, "precision": 2}
    found = testbed.capacities(*words, seeds=[0, 1], **options)
    assert {len(capacity.points) > 1 for capacity in found.of_seed.values()} == {True}
    notes = capsys.readouterr().err
    assert notes.count("trace.output_len=5 in place of trace.output_len=9") == 1
    assert notes.count("GPU KV cache size") == 1
