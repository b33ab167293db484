"""Slots that are swapped out come in again, but those of a request that ends on the host."""

from collections import Counter

import pytest

import testbed
from testbed.core.slots import HOST, Refusal
from testbed.memory.paged.paged import BlockMemory, Paged

WORDS = ("model=llama-3-8b", "gpu=h100-80gb", "+system=vllm-v1", "preemption=swap")
LOAD = ("trace=random", "trace.input_len=150", "trace.output_len=150", "trace.input_ratio=0.7")
FULL = ("server.num_blocks=160", "swap_space_gib=40")


@pytest.fixture
def moved(monkeypatch):
    """The slots of each request that were moved to the host, less those moved back."""
    left, move = Counter(), BlockMemory.move

    def counted(policy, seqs, tier):
        answer = move(policy, seqs, tier)
        if not isinstance(answer, Refusal):
            copies = (copy for each in answer.ops.moves for copy in each.copies)
            num_slots = sum(copy.length for copy in copies)
            left[seqs[0].seq_id] += num_slots if tier == HOST else -num_slots
        return answer

    monkeypatch.setattr(Paged, "move", counted)
    return left


@pytest.mark.parametrize("scheduler", ["vllm_v1", "vllm_v1_async"])
def test_what_goes_out_comes_in_where_ends_are_foreseen(scheduler, moved):
    words = (*WORDS, *LOAD, *FULL, f"scheduler={scheduler}", "policy=paged")
    run = testbed.simulate(*words, rate=25, duration_s=6, seed=6)
    assert run.summary["preemptions"]["swap"] > 20
    assert not any(moved.values())


def test_a_request_whose_end_was_not_foreseen_ends_on_the_host(moved):
    """One of request 89, by this seed: it was swapped out while its last token was computed."""
    words = (*WORDS, *LOAD, *FULL, "policy=paged", "scheduler.ignore_eos=false")
    run = testbed.simulate(*words, rate=25, duration_s=6, seed=6)
    left = {request: slots for request, slots in moved.items() if slots}
    assert left == {89: 240}
    (row,) = run.requests[run.requests["request_id"] == 89].to_dict("records")
    assert row["prompt_len"] + row["output_len"] <= 240 < row["prompt_len"] + row["output_len"] + 16
    assert row["num_swaps"] == 2  # it came back from the first
    assert row["finish_s"] > 0
