"""The chat workload: order of turns, cut histories, one trace for all systems."""

from random import Random

import numpy as np
import pytest
from refusals import refuses
from trace_files import pairs, put

from testbed.traces.chat import ChatCsv, ChatFitted, interleave
from testbed.traces.chat_histories import ChatHistories

HEADER = "conv_id,turn,history_plus_prompt_tokens,output_tokens\n"
CSV = HEADER + "0,0,74,918\n1,0,290,905\n1,1,1402,1024\n1,2,2480,33\n2,0,41,950\n"


@pytest.fixture
def csv_file(tmp_path):
    return put(tmp_path, "chat.csv", CSV)


def test_chat_file_is_read_in_order_and_cut(csv_file):
    cut = [(74, 918), (290, 905), (1024, 1016), (1024, 33), (41, 950)]
    assert pairs(ChatCsv(csv_file).rows(None, 0)) == cut
    assert pairs(ChatCsv(csv_file, max_prompt=100, max_output=50).rows(None, 0))[1] == (100, 50)


def test_turns_among_those_of_other_conversations_are_their_own_s(csv_file, tmp_path):
    first, *rows = CSV.splitlines()
    mixed = ChatCsv(
        put(tmp_path, "mixed.csv", "\n".join([first, *(rows[i] for i in (0, 1, 4, 2, 3))]))
    )
    assert pairs(mixed.rows(None, 0)) == pairs(ChatCsv(csv_file).rows(None, 0))
    assert mixed.rows(5, 0).session.max() == 2
    late = ChatCsv(put(tmp_path, "late.csv", "\n".join([first, rows[2], rows[1]])))
    refuses("line 3, column turn: '0' is not behind", late.rows, None, 0)


def test_shorter_answers_are_shorter_in_later_histories_too(csv_file):
    """Conversation 1 answers 905, then 1,024: its later prompts lose 453, then 453 and 512
    tokens.
    """
    half = ChatCsv(csv_file, max_prompt=1500, answer_scale=0.5)
    assert pairs(half.rows(None, 0)) == [(74, 459), (290, 452), (949, 512), (1500, 16), (41, 475)]
    assert sorted(pairs(half.rows(5, 0))) == sorted(pairs(half.rows(None, 0)))
    least = ChatCsv(csv_file, max_prompt=1500, answer_scale=1e-6)  # a token is the least
    assert pairs(least.rows(None, 0)) == [(74, 1), (290, 1), (498, 1), (553, 1), (41, 1)]
    assert (
        pairs(ChatCsv(csv_file, max_prompt=1, max_output=1, new_probability=1).rows(None, 0))
        == [(1, 1)] * 5
    )
    for scale in (0, float("inf")):
        refuses("answer_scale is", ChatFitted, answer_scale=scale)


def test_every_turn_is_used_once(csv_file):
    """A file of five turns: three whole rounds of it, and the first two turns again."""
    for make in (
        lambda p: ChatCsv(csv_file, new_probability=p),
        lambda p: ChatFitted(new_probability=p),
    ):
        workloads = [pairs(make(p).rows(17, 0)) for p in (0.1, 0.5, 1)]
        assert sorted(workloads[0]) == sorted(workloads[1]) == sorted(workloads[2])
        assert workloads[0] != workloads[1]
    whole = pairs(ChatCsv(csv_file).rows(None, 0))
    assert sorted(workload_of(csv_file, 17)) == sorted(whole * 3 + whole[:2])


def workload_of(csv_file, num_rows):
    return pairs(ChatCsv(csv_file).rows(num_rows, 0))


def test_conversation_turns_keep_their_order():
    starts = np.append(0, np.cumsum([3, 1, 5, 2, 40] * 12))
    turns = interleave(starts, 0.2, Random(0)).tolist()
    assert sorted(turns) == list(range(starts[-1]))
    owner = np.searchsorted(starts, turns, side="right") - 1
    seen = {
        talk: [turn for turn, of in zip(turns, owner, strict=True) if of == talk]
        for talk in set(owner.tolist())
    }
    assert all(of == list(range(starts[talk], starts[talk + 1])) for talk, of in seen.items())
    assert sorted(seen, key=lambda talk: turns.index(starts[talk])) == sorted(seen)


def test_new_conversations_start_with_the_configured_probability():
    starts = np.arange(0, 300_000, 50)
    turns = interleave(starts, 0.5, Random(1))
    assert np.mean(turns[:10_000] % 50 == 0) == pytest.approx(0.5, abs=0.02)
    assert not np.any(turns[-10_000:] % 50 == 0)
    seldom = interleave(starts, 0.1, Random(1))
    assert np.mean(seldom[:10_000] % 50 == 0) == pytest.approx(0.1, abs=0.02)


def test_histories_share_ids_only_within_a_conversation():
    rows = ChatHistories(max_prompt=200).rows(400, seed=1)
    first_ids = [ids[0] for ids in rows.prompt_ids]
    for ids, prompt_len in zip(rows.prompt_ids, rows.prompt_len.tolist(), strict=True):
        assert len(ids) == -(-prompt_len // rows.tokens_per_id)
        longest = max((other for other in rows.prompt_ids if other[0] == ids[0]), key=len)
        assert longest[: len(ids)] == ids
    assert 40 < len(set(first_ids)) < 200  # as many as conversations


# of the turns file, each turn once: mean cut prompt, mean cut output, share of prompts cut to 1024
FACTS = (790.07, 438.7, 0.638)


def test_fitted_model_matches_the_file():
    rows = ChatFitted().rows(100_000, seed=11)
    assert rows.prompt_len.mean() == pytest.approx(FACTS[0], rel=0.02)
    assert rows.output_len.mean() == pytest.approx(FACTS[1], rel=0.02)
    assert np.mean(rows.prompt_len == 1024) == pytest.approx(FACTS[2], abs=0.01)


def test_fitted_conversations_match_turn_lengths_of_the_file():
    talks = ChatFitted().conversations(220_000, np.random.default_rng(0))
    sizes = np.diff(talks.starts)
    assert sizes.mean() == pytest.approx(5.41, rel=0.02)
    for turn, (share, mean_cut) in enumerate(
        [(1.0, 186.1), (0.796, 669.1), (0.638, 895.4), (0.523, 967.3)]
    ):
        of_turn = talks.prompt_len[talks.starts[:-1][sizes > turn] + turn]
        assert np.mean(sizes > turn) == pytest.approx(share, abs=0.01)
        assert np.minimum(of_turn, 1024).mean() == pytest.approx(mean_cut, rel=0.03)


@pytest.mark.parametrize(
    ("ask", "culprit"),
    [
        (lambda path: ChatFitted().rows(None, 0), "give the number of rows"),
        (lambda path: ChatFitted().rows(-1, 0), "num_rows=-1"),
        (
            lambda path: ChatFitted().rows(1, 0, max_len=2040),
            r"1024 \+ max_output=1016: is not below 2040",
        ),
        (lambda path: ChatCsv(path).rows(None, 0, max_len=512), "is not below 512"),
        (lambda path: ChatFitted(new_probability=0), "new_probability is 0"),
        (lambda path: ChatFitted(max_prompt=0), "max_prompt 0"),
        (lambda path: ChatFitted(max_output=0), "max_output 0"),
        (lambda path: ChatFitted(new_probability=1.01), "new_probability is 1.01"),
        (
            lambda path: ChatFitted("sharegpt").rows(1, 0),
            "model='sharegpt': is not a model of conversations",
        ),
    ],
)
def test_bad_chat_settings_are_refused(csv_file, ask, culprit):
    refuses(culprit, ask, csv_file)
