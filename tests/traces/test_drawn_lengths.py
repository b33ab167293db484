"""Drawn lengths: the rules of `vllm bench serve` and of GuideLLM, shared beginnings, turns."""

import numpy as np
import pytest
from refusals import refuses

from testbed import simulate
from testbed.traces.normal_lengths import NormalLengths, Spread
from testbed.traces.random_lengths import RandomLengths

DRAWS = 10_000


def is_uniform(values, least, most):
    """True if the draws reach both ends, and their mean is within four standard errors."""
    width = most - least + 1
    error = 4 * np.sqrt((width**2 - 1) / 12 / len(values))
    return (values.min(), values.max()) == (least, most) and abs(
        values.mean() - (least + most) / 2
    ) <= error


def test_lengths_are_uniform_between_the_ends_of_the_ratio_as_in_vllm_bench_serve():
    rows = RandomLengths(1500, 300, input_ratio=0.1, output_ratio=0.25).rows(DRAWS, 0)
    assert is_uniform(rows.prompt_len, 1350, 1651)  # 1500 * 1.1 is above 1650 in floating point
    assert is_uniform(rows.output_len, 225, 375)
    assert abs(np.corrcoef(rows.prompt_len, rows.output_len)[0, 1]) < 0.04


def test_ends_are_rounded_outwards_and_an_output_has_a_token():
    rows = RandomLengths(5, 1, input_ratio=0.3, output_ratio=0.9).rows(DRAWS, 0)
    assert is_uniform(rows.prompt_len, 3, 7)
    assert is_uniform(rows.output_len, 1, 2)


def test_one_ratio_is_of_both_and_special_tokens_are_not_drawn():
    rows = RandomLengths(101, 10, input_ratio=0.5, num_special=1).rows(DRAWS, 0)
    assert is_uniform(rows.prompt_len, 51, 151)
    assert is_uniform(rows.output_len, 5, 15)


@pytest.mark.parametrize("prefix_len", [0, 1, 48, 100])
def test_prompts_share_their_prefix_and_nothing_else(prefix_len):
    rows = RandomLengths(40, 1, input_ratio=0.5, prefix_len=prefix_len).rows(50, 0)
    assert rows.prompt_len.min() >= prefix_len + 20
    shared = prefix_len // rows.tokens_per_id
    assert shared * rows.tokens_per_id == prefix_len
    assert len({ids[:shared] for ids in rows.prompt_ids}) == 1
    own = [number for ids in rows.prompt_ids for number in ids[shared:]]
    assert len(set(own)) == len(own)
    assert [len(ids) for ids in rows.prompt_ids] == (
        -(-rows.prompt_len // rows.tokens_per_id)
    ).tolist()


@pytest.mark.parametrize(("prefix_len", "seen"), [(0, 100), (20, 120)])
def test_a_prompt_has_its_special_tokens_which_all_prompts_begin_with(prefix_len, seen):
    """As the server of `vllm bench serve` 0.33 sees them; without them each has one less."""
    rows = RandomLengths(100, 1, prefix_len=prefix_len, num_special=1).rows(20, 0)
    assert set(rows.prompt_len.tolist()) == {seen}
    assert len({ids[: prefix_len + 1] for ids in rows.prompt_ids}) == 1
    assert rows.tokens_per_id == 1
    assert len({ids[prefix_len + 1] for ids in rows.prompt_ids}) == 20


@pytest.mark.parametrize(("num_rows", "least", "most"), [(1_000, 2, 25), (10_000, 850, 1_100)])
def test_prompts_of_a_vocabulary_recur_as_in_vllm(num_rows, least, most):
    """V = 50,000: about n^2 / 2V prompts are the same as an earlier one, from their first token."""
    trace = RandomLengths(128, 1, vocab_size=50_000)
    rows = trace.rows(num_rows, 0)
    assert least <= num_rows - len(set(rows.prompt_ids)) <= most
    assert len({ids[0] for ids in rows.prompt_ids}) == len(set(rows.prompt_ids))
    assert trace.rows(500, 0).prompt_ids == rows.prompt_ids[:500]
    assert len(set(RandomLengths(128, 1).rows(num_rows, 0).prompt_ids)) == num_rows


def test_a_longer_prompt_of_one_start_continues_the_shorter():
    rows = RandomLengths(64, 1, input_ratio=0.9, vocab_size=3).rows(30, 0)
    by_start = {}
    for ids in sorted(rows.prompt_ids, key=len):
        known = by_start.get(ids[0], ())
        assert ids[: len(known)] == known
        by_start[ids[0]] = ids
    assert len(by_start) == 3


def test_a_longer_run_begins_with_the_rows_of_a_shorter_one():
    trace = RandomLengths(100, 100, input_ratio=0.9)
    short, long = (trace.rows(count, 3, max_len=200) for count in (20, 300))
    assert short.prompt_len.tolist() == long.prompt_len[:20].tolist()
    assert (long.prompt_len + long.output_len).max() < 200


def test_normal_lengths_have_guidellms_mean_deviation_and_limits():
    trace = NormalLengths(
        prompt_tokens=1500,
        prompt_tokens_stdev=200,
        output_tokens=300,
        output_tokens_stdev=200,
        output_tokens_max=700,
    )
    rows = trace.rows(DRAWS, 0)
    assert rows.prompt_len.mean() == pytest.approx(1500, abs=8)
    assert rows.prompt_len.std() == pytest.approx(200, rel=0.04)
    assert (rows.output_len.min(), rows.output_len.max()) == (1, 700)


def test_without_a_deviation_lengths_are_uniform_between_limits():
    trace = NormalLengths(
        prompt_tokens=8, prompt_tokens_min=5, prompt_tokens_max=20, output_tokens=3
    )
    rows = trace.rows(DRAWS, 0)
    assert is_uniform(rows.prompt_len, 5, 20)
    assert set(rows.output_len.tolist()) == {3}


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ({"prompt_tokens_stdev": 5000}, True),
        ({"prompt_tokens_max": 5000}, True),
        ({"prompt_tokens_stdev": 400, "prompt_tokens_max": 1200}, False),
        ({"prompt_tokens_stdev": 400}, False),
    ],
)
def test_a_mean_that_limits_move_is_said(options, is_said):
    trace = NormalLengths(prompt_tokens=1000, output_tokens=9, **options)
    stdev, most = (options.get(f"prompt_tokens_{name}") for name in ("stdev", "max"))
    spread = Spread(1000, stdev, None, most)
    drawn = spread.draw(200_000, np.random.default_rng(0)).mean()
    assert spread.drawn_mean == pytest.approx(drawn, rel=0.01)
    assert (trace.lengths_note() is not None) == is_said


def test_a_run_says_the_mean_that_limits_move():
    words = ("trace=guidellm", "trace.prompt_tokens=100", "trace.output_tokens=9")
    few = {"rate": 1, "duration_s": 3}
    run = simulate(*words, "trace.prompt_tokens_stdev=500", **few).summary["run"]
    assert "trace.prompt_tokens=100 draws a mean of" in run["unread_note"]
    assert simulate(*words, **few).summary["run"]["unread_note"] is None


def talks(**options):
    given = {"prompt_tokens": 50, "prompt_tokens_stdev": 9, "output_tokens": 20, **options}
    return NormalLengths(turns=4, num_conversations=30, **given).rows(None, 1, options.get("cut"))


def test_a_turn_has_all_before_it_and_waits_for_the_answer():
    rows = talks(prefix_tokens=32, prefix_count=3)
    for row, before in enumerate(rows.turns.after):
        if before:
            (last,) = before
            assert rows.prompt_len[row] > rows.prompt_len[last] + rows.output_len[last]
            kept = rows.prompt_len[last] // rows.tokens_per_id
            assert rows.prompt_ids[row][:kept] == rows.prompt_ids[last][:kept]
    firsts = {ids[:2] for ids in rows.prompt_ids}
    assert len(firsts) == 3
    assert rows.turns.num_sessions == 30


def test_think_time_moves_nothing_but_the_waits():
    quick, slow = talks(), talks(delay_s=30.0, delay_stdev_s=5.0)
    assert quick.prompt_len.tolist() == slow.prompt_len.tolist()
    assert quick.output_len.tolist() == slow.output_len.tolist()
    assert quick.prompt_ids == slow.prompt_ids
    later = np.array([bool(before) for before in slow.turns.after])
    assert slow.turns.wait_s[later].mean() == pytest.approx(30, abs=2)
    assert not slow.turns.wait_s[~later].any()
    assert not quick.turns.wait_s.any()


def test_a_conversation_waits_equally_long_before_each_turn_as_in_guidellm():
    rows = talks(delay_s=3.0, delay_stdev_s=2.0)
    waits = np.reshape(rows.turns.wait_s, (30, 4))
    assert not waits[:, 0].any()
    assert (waits[:, 1:] == waits[:, 1:2]).all()
    assert len(set(waits[:, 1])) > 20


@pytest.mark.parametrize("deviation", [0.0, 3.0])
def test_waits_stay_between_their_limits(deviation):
    waits = talks(delay_s=3.0, delay_stdev_s=deviation, delay_min_s=2.5, delay_max_s=4.0).turns
    drawn = np.reshape(waits.wait_s, (30, 4))[:, 1]
    assert 2.5 <= drawn.min() < drawn.max() <= 4.0
    assert len(set(drawn)) > 5


def test_a_conversation_ends_before_its_first_prompt_that_is_too_long():
    trace = NormalLengths(prompt_tokens=50, output_tokens=20, turns=4, num_conversations=3)
    rows = trace.rows(None, 0, 200)
    assert (rows.prompt_len + rows.output_len).tolist() == [70, 140] * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomLengths(100, 10, input_ratio=1.0), "input_ratio=1.0"),
        (lambda: RandomLengths(2, 10, input_ratio=0.9), "a prompt may have no token"),
        (lambda: RandomLengths().rows(None, 0), "has no end"),
        (
            lambda: NormalLengths(
                prompt_tokens=9, output_tokens=9, output_tokens_min=5, output_tokens_max=4
            ),
            "output_tokens_min=5",
        ),
        (
            lambda: NormalLengths(prompt_tokens=9, output_tokens=9, prompt_tokens_max=4),
            "prompt_tokens=9: lengths would be from 9 to 4",
        ),
        (
            lambda: NormalLengths(prompt_tokens=9, output_tokens=9, delay_s=2, delay_max_s=1),
            "delay_s=2",
        ),
        (
            lambda: NormalLengths(prompt_tokens=9, output_tokens=9, turns=2).rows(5, 0),
            "arrivals=sessions",
        ),
        (
            lambda: NormalLengths(prompt_tokens=90, output_tokens=9).rows(5, 0, 50),
            "5 of 5 requests",
        ),
    ],
)
def test_lengths_that_cannot_be_drawn_are_refused(make, message):
    refuses(message, make)
