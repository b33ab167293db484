"""Counts of drafts in a run: by hand, and as its requests and steps have it."""

import pytest

import testbed
from testbed.core.errors import InputError
from testbed.speculation.counts import DraftCounts


def test_counts_by_hand():
    counts = DraftCounts()
    for num_drafts, num_accepted in [(0, 0), (3, 2), (3, 0), (2, 2), (0, 0)]:
        counts.add(num_drafts, num_accepted)
    assert counts.summary == {
        "steps": 5,
        "drafted": 8,
        "accepted": 4,
        "tokens_per_step": 1 + 4 / 5,
        "accepted_share": 0.5,
        "found_share": 3 / 5,
        "accepted_by_place": [2 / 3, 2 / 3],
    }


def test_without_a_step_no_ratio_is_counted():
    summary = DraftCounts().summary
    assert (summary["steps"], summary["drafted"], summary["accepted"]) == (0, 0, 0)
    assert {summary[name] for name in ("tokens_per_step", "accepted_share", "found_share")} == {
        None
    }


LOAD = ("trace=random", "trace.input_len=40", "trace.output_len=30", "+system=vllm-v1")


@pytest.mark.parametrize("method", ["heads", "ngram", "draft_model"])
def test_a_run_s_counts_are_those_of_its_tokens(method):
    scheduler = "scheduler=vllm_v1" if method == "ngram" else "scheduler=vllm_v1_async"
    words = (f"speculation={method}", *LOAD, "model=llama-3-8b", "gpu=h100-80gb", scheduler)
    run = testbed.simulate(*words, rate=3, duration_s=5)
    counts = run.summary["speculation"]
    tokens = int(run.requests["output_len"].sum())
    num_requests = len(run.requests)
    # A prompt's chunk gives each request its first token, and each step one more than it accepts.
    assert counts["steps"] + counts["accepted"] == tokens - num_requests
    assert counts["accepted"] <= counts["drafted"] <= 9 * counts["steps"]
    assert counts["tokens_per_step"] == 1 + counts["accepted"] / counts["steps"]
    if counts["drafted"]:
        assert counts["accepted_share"] == counts["accepted"] / counts["drafted"]
        assert counts["accepted_by_place"] == sorted(counts["accepted_by_place"], reverse=True)
        of_steps = counts["found_share"] * counts["steps"]
        assert sum(counts["accepted_by_place"]) * of_steps == pytest.approx(counts["accepted"])


def test_heads_draft_as_many_tokens_in_each_step_as_they_are():
    words = ("speculation=heads", *LOAD, "model=llama-3-8b", "gpu=h100-80gb")
    run = testbed.simulate(*words, rate=1, duration_s=4)
    counts = run.summary["speculation"]
    num_heads = run.setup.config.speculation.parameters["num_drafts"]
    assert counts["drafted"] == num_heads * counts["steps"] * counts["found_share"]


@pytest.mark.parametrize("method", ["heads", "draft_model"])
@pytest.mark.parametrize("name", ["overhead_s", "overhead_per_token_s", "sequences_per_fork"])
def test_software_times_of_a_drafter_s_own_are_refused(method, name):
    """The model's costs charge them, once an iteration."""
    words = (f"speculation={method}", *LOAD, "model=llama-3-8b", "gpu=h100-80gb")
    key = f"speculation.efficiencies.{name}"
    with pytest.raises(InputError, match=key):
        testbed.simulate(*words, f"{key}=0.5", rate=1, duration_s=1)
    same = testbed.simulate(*words, f"software.{name}=0.0001", rate=3, duration_s=3)
    assert same.summary["speculation"]["steps"] > 0
