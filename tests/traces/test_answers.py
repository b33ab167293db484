"""Prompts that contain answers: what traces say of them, and what caches of answers find."""

from random import Random

import numpy as np
import pytest
from refusals import refuses

from testbed import simulate
from testbed.core.request import Request, Workload
from testbed.core.sequence import Sequence
from testbed.experiments.real.lockstep.turn_draws import with_later_turns
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.radix.radix import Radix
from testbed.traces.chat_histories import ChatHistories
from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.normal_lengths import NormalLengths

CHATS = ChatHistories().rows(300, 3)
TALKS = NormalLengths(
    prompt_tokens=50,
    output_tokens=40,
    output_tokens_stdev=20,
    prefix_tokens=24,
    prefix_count=3,
    turns=4,
    num_conversations=60,
).rows(None, 3)


@pytest.mark.parametrize("rows", [CHATS, TALKS], ids=["chats", "turns"])
def test_a_turn_has_the_ids_of_the_prompt_and_the_answer_before_it(rows):
    each, last, found = rows.tokens_per_id, {}, 0
    requests = list(Workload(rows, np.zeros(len(rows), np.int64)))
    for request in requests:
        before = last.get(request.session)
        if before is not None:
            seq = Sequence(0, before.incoming)
            end = min(before.final_len, request.prompt_len) // each
            assert request.prompt_ids[:end] == tuple(map(seq.id_at, range(end)))
            found += 1
        last[request.session] = request
    assert found > 100


def test_no_two_sessions_have_an_id_of_an_answer_in_common():
    requests = list(Workload(TALKS, np.zeros(len(TALKS), np.int64)))
    owners = {}
    for request in requests:
        first, end = (n // TALKS.tokens_per_id for n in (request.prompt_len, request.final_len))
        for place in range(first, end + 1):
            owner = owners.setdefault(request.answer_id + place, request.session)
            assert owner == request.session


HEAD = "input_tokens,output_tokens,prompt_ids,answer_of\n"


def rows_of(tmp_path, *lines, **options):
    path = tmp_path / "talk.csv"
    path.write_text(HEAD + "".join(f"{line}\n" for line in lines))
    return CsvLengths(str(path), **options).rows(None, 0)


def test_a_csv_says_whose_answer_a_prompt_contains(tmp_path):
    lines = ["20,30,5 6,", "64,9,5 7 8 9,0", "80,9,5 7 8 9 11,1"]
    rows = rows_of(tmp_path, *lines, tokens_per_id=16)
    first, second, third = rows.prompt_ids
    answers = rows.answer_id.tolist()
    # 20 + 30 tokens: ids 1 and 2 have generated tokens, the last one has two tokens of the message
    assert first == (5, answers[0] + 1)
    assert second == (5, answers[0] + 1, answers[0] + 2, 9)
    assert third == (*second, 11)
    kept = rows.take(np.array([1, 2]))
    assert kept.answer_id.tolist() == answers[1:]


def test_large_ids_beside_answers_stay_what_they_are(tmp_path):
    large = 1 << 60
    rows = rows_of(tmp_path, f"16,16,{large},", f"32,1,{large} 3,0", f"16,1,{large},")
    assert rows.prompt_ids[0] == rows.prompt_ids[2] == rows.prompt_ids[1][:1]
    assert rows.prompt_ids[1][1] == rows.answer_id[0] + 1


@pytest.mark.parametrize(
    "line", ["64,9,5 7 8 9,1", "64,9,5 7 8 9,7", "64,9,4 7 8 9,0", "16,9,5,0", "64,9,5 7 8 9,x"]
)
def test_a_csv_that_contradicts_itself_is_refused(tmp_path, line):
    refuses("row", lambda: rows_of(tmp_path, "33,30,5 6 7,", line))


def stored(policy, seq, num_tokens):
    """A request that has all its tokens, released; what it found."""
    (grant,) = policy.admit([seq], num_tokens)
    seq.set_counts(num_slots=num_tokens, num_stored=num_tokens)
    policy.publish(seq, num_tokens if isinstance(policy, Radix) else seq.prompt_len)
    policy.release(seq)
    return grant.num_cached


def talk(request_id, prompt, **values):
    request = Request(request_id, 0, len(prompt), 9, prompt_ids=tuple(prompt), **values)
    return Sequence(request_id, request.incoming)


ANSWER = range(1006, 1015)  # of nine tokens, behind a prompt of six
KINDS = [(Radix, 1, 15), (Radix, 4, 12), (OutputCaching, 4, 12), (PrefixCaching, 4, 4)]


@pytest.mark.parametrize(("kind", "block_size", "found"), KINDS)
def test_the_next_prompt_finds_the_answer(kind, block_size, found):
    policy = kind(PoolSpec(400, 100), block_size)
    stored(policy, talk(0, range(6), answer_id=1000), 15)
    later = talk(1, [*range(6), *ANSWER, 70, 71])
    assert policy.lookup(later).num_cached(17) == found
    other = talk(2, [*range(6), 1006, 1007, 8, 9, 10, 11])
    assert policy.lookup(other).num_cached(12) == (8 if block_size == 1 else min(8, found))


@pytest.mark.parametrize("kind", [Radix, OutputCaching])
def test_a_request_does_not_find_an_answer_that_it_has_not_generated(kind):
    policy = kind(PoolSpec(400, 100), 4)
    stored(policy, talk(1, [*range(6), *ANSWER, 70]), 16)
    assert stored(policy, talk(0, range(6), answer_id=1000), 6) == 4


@pytest.mark.parametrize("kind", [Radix, OutputCaching])
def test_a_sample_is_not_the_answer(kind):
    policy = kind(PoolSpec(400, 100), 4)
    stored(policy, talk(0, range(6), answer_id=1000, num_seqs=2), 15)
    assert policy.lookup(talk(1, [*range(6), *ANSWER, 70, 71])).num_cached(17) == 4


TURNS = (
    "model=llama-3-8b",
    "gpu=h100-80gb",
    "trace=guidellm",
    "trace.turns=4",
    "trace.prompt_tokens=1000",
    "trace.output_tokens=304",
    "trace.num_conversations=30",
    "arrivals=sessions",
)


@pytest.mark.parametrize(
    ("words", "share"),
    [
        (("policy=prefix_caching",), 0.582),
        (("policy=prefix_caching_v1", "scheduler=vllm_v1"), 0.659),
        (("policy=radix", "policy.block_size=16", "scheduler=sglang"), 0.659),
    ],
)
def test_answers_are_found_in_a_run(words, share):
    counted = simulate(*TURNS, *words).summary["counters"]
    assert counted["hit_blocks"] / counted["blocks"] == pytest.approx(share, abs=0.002)


def test_turns_come_after_the_answers_that_they_contain():
    drawn = [Request(i, i, 6, 5, prompt_ids=tuple(range(9 * i, 9 * i + 6))) for i in range(90)]
    turns = with_later_turns(Random(1), drawn, 64)
    assert sum(turn.prompt_len > 6 for turn in turns) > 20
