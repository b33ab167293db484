"""States that vLLM keeps at the ends of chunks: where chunks end, what stays, fast equals slow."""

from random import Random

import pytest
from manual_driver import sequence

from testbed.core.layers import KvGroup
from testbed.core.slots import Refusal
from testbed.experiments.real.lockstep.draws import draw
from testbed.memory.groups.grouped_output_caching import GroupedOutputCaching
from testbed.memory.groups.state_chunks import Prefill, StateChunks
from testbed.memory.policy import PoolSpec
from testbed.memory.served import StateCaching
from testbed.run.result import front_end
from testbed.run.simulate import run
from testbed.vllm.releases import RELEASES

MOST = 8192


def ends(release, alignment=None, prompt_len=8000, budget=MOST, junction=0, start=0, size=784):
    """The ends of a prompt's chunks."""
    chunks = StateChunks(RELEASES[release], size, alignment)
    prefill, found = Prefill(prompt_len, prompt_len, junction), [start]
    while found[-1] < prompt_len:
        new = min(prompt_len - found[-1], budget)
        found.append(found[-1] + chunks.cut(found[-1], new, prefill, budget))
    return found[1:]


def test_a_prompt_ends_at_its_last_block_first():
    for release in ("0.19", "0.28", "0.33"):
        assert ends(release) == [7840, 8000]
    assert ends("0.19", budget=2048) == [1568, 3136, 4704, 6272, 7840, 8000]


def test_a_kernel_that_exports_states_needs_no_chunk_for_the_last_block():
    assert ends("0.33", alignment=64, size=832) == [8000]
    assert ends("0.33", alignment=64, size=832, budget=2048)[-2:] == [6656, 8000]


def test_a_chunk_ends_behind_a_prefix_that_others_share():
    assert ends("0.33", junction=5488) == [5488, 7840, 8000]
    assert ends("0.19", junction=5488) == [7840, 8000]


def test_a_prompt_of_whole_blocks_leaves_the_last_one_since_0_33():
    assert ends("0.19", prompt_len=1568) == ends("0.28", prompt_len=1568) == [1568]
    assert ends("0.33", prompt_len=1568) == [784, 1568]


def test_a_budget_below_a_block_waits_or_computes_the_block_in_parts():
    chunks = StateChunks(RELEASES["0.19"], 784, alignment=None)
    assert chunks.cut(0, 500, Prefill(8000, 8000), 500) == 0
    assert ends("0.33", prompt_len=1600, budget=500) == [500, 784, 1284, 1568, 1600]


GROUPS = (
    KvGroup("full", num_layers=1, slot_bytes=64),
    KvGroup("state", num_layers=1, slot_bytes=0, state_bytes=128),
)


def served(policy, number, ids, num_tokens=None):
    """Admit and publish a prompt of four tokens an id; the tokens that it finds, and the answer."""
    seq = sequence(number, len(ids) * 4, prompt_ids=ids, tokens_per_id=4)
    hit = policy.lookup(seq)
    answer = policy.admit([seq], num_tokens or seq.prompt_len, hit)
    if not isinstance(answer, Refusal):
        policy.publish(seq, num_tokens or seq.prompt_len)
    return hit.num_cached(seq.prompt_len), answer, seq


def test_a_request_waits_for_a_state_of_the_same_plan():
    pool = PoolSpec(400, 400, layer_bytes=64, num_layers=1, groups=GROUPS)
    policy = GroupedOutputCaching(pool, 4, states=StateCaching())
    assert served(policy, 0, (1, 2, 3), 8)[0] == 0
    assert served(policy, 1, (1, 2, 4))[:2] == (8, Refusal.LATER)
    assert policy.begin_plan()
    found, answer, _ = served(policy, 1, (1, 2, 4))
    assert (found, answer[0].num_cached) == (8, 8)


@pytest.mark.parametrize("release", ["0.19", "0.28", "0.33"])
def test_many_steps_at_once_equal_single_ones(release):
    for seed in range(2):
        base = ("+system=vllm-v1", f"release='{release}'", "cost=analytic")
        words, requests = draw(Random(seed), base, 20, states=True)
        fast, slow = (
            run(front_end().configure([*words, f"fast_forward={fast}"], {"trace": requests}))
            for fast in ("true", "false")
        )
        assert fast.requests.equals(slow.requests)
        assert fast.summary["counters"] == slow.summary["counters"]


def test_a_chunk_behind_the_prompt_is_not_cut_and_one_within_a_block_takes_no_page():
    for release in ("0.19", "0.33"):
        chunks = StateChunks(RELEASES[release], 784, alignment=64)
        assert chunks.cut(8000, 1, Prefill(8000, 8000), MOST) == 1
        assert chunks.num_pages(785, 1568, 8000) == 0
        assert chunks.num_pages(784, 785, 8000) == chunks.num_pages(785, 1569, 8000) == 1
