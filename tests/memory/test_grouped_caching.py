"""GroupedCaching: vLLM's law of hits by real runs; what is found while groups have lost different pages."""

import pytest

from testbed.build import build
from testbed.core.layers import KvGroup
from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, disband, passing_batch
from testbed.core.slots import Grant, Refusal
from testbed.experiments.runs.compose import configured
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.policy import PoolSpec
from testbed.run import run

UNIT = 2144
FULL, WINDOW = KvGroup("full", 2, 64), KvGroup("window", 2, 64, 9)
STATE = KvGroup("state", 2, 0, None, 128)


def caching(groups, num_blocks, rule="one_page_size", **options):
    """A pool of num_blocks blocks of 4 tokens in two layers."""
    return GroupedCaching(PoolSpec(num_blocks * 4, 400, (), 64, 2, 1, groups), 4, rule, watermark=0, **options)


def served(policy, number, num_tokens, prompt=0):
    """A sequence whose whole prompt of tokens from `prompt` on is stored; and how many of them it found."""
    ids = tuple(range(prompt, prompt + num_tokens))
    seq = Sequence(number, Incoming(number, 0, num_tokens, 1, prompt_ids=ids))
    answer = policy.admit([seq], num_tokens)
    assert isinstance(answer, list), answer
    policy.publish(seq, num_tokens)
    seq.num_slots = seq.num_stored = num_tokens
    policy.check()
    return seq, answer[0].num_cached


def stepped(policy, seq):
    """The answer to one more slot."""
    batch = passing_batch([seq])
    answer = policy.extend(batch)
    batch.extend(int(isinstance(answer, Grant)))
    disband(batch)
    return answer


@pytest.mark.parametrize("model", ["qwen3-next-80b-a3b", "nemotron-h-8b"])
@pytest.mark.parametrize("prompt_len", [3784, 12362, 18770])
def test_hits_of_a_prompt_sent_twice_are_those_of_vllm(model, prompt_len, tmp_path):
    """vLLM's hybrid models find whole units; its EAGLE option drops the last of them."""
    ids = " ".join(map(str, range(-(-prompt_len // 16))))
    rows = [f"{prompt_len},4,{second},{ids}" for second in (0, 100)]
    (tmp_path / "twice.csv").write_text("\n".join(["input_tokens,output_tokens,arrival_s,prompt_ids", *rows, ""]))
    words = (f"model={model}", "policy=grouped_caching", f"policy.block_size={UNIT}", "scheduler=chunked",
             "model.max_len=32768", "cost=analytic", "trace=csv", f"trace.path={tmp_path}/twice.csv",
             "arrivals=replay")  # fmt: skip
    for num_dropped in (0, 1):
        counters = run(build(configured((*words, f"policy.num_dropped_blocks={num_dropped}")))).summary["counters"]
        assert counters["hit_tokens"] == max(0, (prompt_len - 1) // UNIT - num_dropped) * UNIT
        assert counters["prompts"] == 2


def test_a_hit_ends_where_all_groups_have_what_the_next_token_reads():
    """A window of 9 in blocks of 4 needs the last two blocks; the pages of the others were evicted first."""
    policy = caching((FULL, WINDOW), 40)
    seq, found = served(policy, 0, 41)
    assert found == 0
    policy.release(seq)
    assert served(policy, 1, 30)[1] == 28
    assert served(policy, 2, 41)[1] == 40
    gone = [page for page, (_, column) in policy._index.holder.items() if column == 1 and page in policy._queues[0]]
    for page in gone:
        policy._index.drop(page)
        policy._free_idle(1, page)
    policy.check()
    assert [served(policy, 3 + i, length)[1] for i, length in enumerate((17, 30, 37, 41))] == [0, 28, 28, 40]


def test_a_state_is_found_from_the_next_iteration_on():
    """K and V are written before they are read in one iteration; a state is not."""
    for groups, found in (((FULL,), 8), ((FULL, STATE), 0)):
        policy = caching(groups, 40)
        seqs = [Sequence(i, Incoming(i, 0, 9, 1, prompt_ids=tuple(range(9)))) for i in range(3)]
        policy.admit(seqs[:1], 9)
        policy.publish(seqs[0], 9)
        assert policy.find(seqs[1], 9) == found
        seqs[0].num_slots = seqs[0].num_stored = 9
        stepped(policy, seqs[0])
        assert policy.find(seqs[2], 9) == 8


def test_a_page_that_another_sequence_holds_is_not_free_for_a_step():
    policy = caching((WINDOW,), 4)
    first, _ = served(policy, 0, 13)
    assert isinstance(stepped(policy, first), Grant)  # gives its first block back
    second, found = served(policy, 1, 13)
    assert (found, policy.usage().free + policy.usage().cached) == (12, 0)
    first.num_slots = first.num_stored = 16  # the last block is full
    assert stepped(policy, first) is Refusal.LATER
    policy.release(second)
    assert isinstance(stepped(policy, first), Grant)


def test_idle_pages_of_one_group_are_evicted_for_another():
    """Nine large pages of 2 blocks of `full` or 1 of `wide`; what `wide` leaves behind its window is anybody's."""
    policy = caching((FULL, KvGroup("wide", 4, 64, 4)), 18, "large_pages")
    first, _ = served(policy, 0, 24)
    assert policy.usage().free == 0
    assert isinstance(stepped(policy, first), Grant)
    assert (policy.usage().free, policy.usage().cached) == (0, 3 * 16)
    assert served(policy, 1, 8, prompt=100)[1] == 0
    assert policy.usage().cached == 0
