"""Iterations with drafts: verified by the kernels for decodes, or as prompts; launches of both."""

import pytest
from tiny import OneMillisecond, analytic

from testbed.core.request import Request
from testbed.cost.model import Launch, Work
from testbed.cost.speculative import SpeculativeCost, verified_as_prompts
from testbed.engine.simulation import simulate
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import VllmV1
from testbed.speculation.acceptance import Constant
from testbed.speculation.ngram import NGram


@pytest.mark.parametrize(
    ("draft_tokens", "decodes", "chunks"),
    [
        (0, (4, 400), ()),
        (3, (3, 300), ((4, 96),)),
        (4, (2, 200), ((3, 97), (3, 97))),
        (12, (0, 0), ((4, 96),) * 4),
    ],
)
def test_drafts_are_verified_as_chunks_of_prompts(draft_tokens, decodes, chunks):
    """Four decodes of 100 tokens, of which as few have up to three drafts as can."""
    work = Work(4, 400, 100, prefill=((9, 0),), draft_tokens=draft_tokens)
    verified = verified_as_prompts(work, 3)
    assert (verified.decode_seqs, verified.decode_context) == decodes
    assert verified.prefill == (*chunks, (9, 0))
    assert verified.num_tokens == work.num_tokens
    assert verified.draft_tokens == (0 if chunks else draft_tokens)


def cost_of(model, as_prompts, num_drafts=3):
    """The model's cost with drafts that take no time of the GPU."""
    model.verifies_as_prompts = as_prompts
    return SpeculativeCost(model, None, num_drafts, None)


@pytest.mark.parametrize(("num_prompts", "num_passes"), [(0, 3), (1, 3), (2, 1)])
def test_drafting_ends_above_a_number_of_sequences(num_prompts, num_passes):
    """Three decodes, and prompts; a pass takes as long as the iteration. One fills the cache."""
    cost = SpeculativeCost(OneMillisecond(), OneMillisecond(), 3, off_above=4)
    work = Work(3, 300, 100, prefill=((9, 0),) * num_prompts)
    assert cost.iteration(work) == (1 + num_passes) * OneMillisecond().iteration(work)


def test_cost_is_that_of_the_work_as_it_is_verified():
    work = Work(4, 400, 100, draft_tokens=12)
    as_decodes, as_prompts = (cost_of(analytic(), way) for way in (False, True))
    assert as_decodes.iteration(work) == analytic().iteration(work)
    assert as_prompts.iteration(work) == analytic().iteration(verified_as_prompts(work, 3))


class Launched(OneMillisecond):
    """Notes what the host launches."""

    def __init__(self):
        self.noted = []

    def launch(self, decode_seqs, num_prompts, prompt_tokens):
        self.noted.append((decode_seqs, num_prompts, prompt_tokens))
        return Launch(0, 0)


@pytest.mark.parametrize(("as_prompts", "step"), [(False, (2, 0, 0)), (True, (0, 2, 8))])
def test_host_launches_the_decodes_that_have_drafts(as_prompts, step):
    """Two requests of 10 tokens, an output of 5 each: the prompts, then 4 tokens a step."""
    speculation = NGram(3, acceptance=Constant(1.0))
    limits = {
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
    }
    policy = Paged(PoolSpec(400, 64), block_size=4, watermark=0)
    options = {"drafter": speculation, "max_len": 64}
    scheduler = VllmV1(policy, Recompute(), **options, **limits)
    launched = Launched()
    requests = [Request(i, arrival_ps=0, prompt_len=10, output_len=5) for i in range(2)]
    options = {"acceptance": speculation.acceptance, "fast_forward": False}  # which asks once
    simulate(requests, scheduler, cost_of(launched, as_prompts), 64, **options)
    assert launched.noted == [(0, 2, 20), step]
