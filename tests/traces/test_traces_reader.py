"""The recipes that every trace shares: order, filter, shuffle, draws; and the content of prompts in
a CSV.
"""

import gzip
from itertools import cycle, islice
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from trace_files import pairs, put

from testbed.core.request import Rows, Workload
from testbed.traces.chat_histories import ChatHistories
from testbed.traces.csv_lengths import CsvLengths, write_lengths
from testbed.traces.reader import FileTrace, columns
from testbed.traces.synthetic import Fitted
from testbed.traces.vllm_log import VllmLog


class InMemory(FileTrace):
    """A file trace whose rows are at hand: all a plug-in of another format must bring is read()."""

    def __init__(self, given_pairs):
        super().__init__("in memory")
        self.given_pairs = given_pairs

    def read(self):
        return Rows(*columns(self.given_pairs))


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1),
    st.integers(0, 90),
    st.integers(0, 2**32),
    st.integers(2, 99),
)
def test_sampling_recipe_matches_the_protocol_code(given_pairs, num_rows, seed, max_len):
    filtered = [(prompt, output) for prompt, output in given_pairs if prompt + output < max_len]
    trace = InMemory(given_pairs)
    if not filtered:
        refuses("in memory: ", trace.rows, num_rows, seed, max_len)
        return
    expected = list(islice(cycle(filtered), num_rows))
    Random(seed).shuffle(expected)
    assert pairs(trace.rows(num_rows, seed, max_len)) == expected


def test_a_file_is_parsed_anew_if_its_content_or_the_options_change(tmp_path):
    def rows(text, **options):
        put(tmp_path, "lengths.csv", text)
        return CsvLengths(path, **options).rows(None, 0)

    path = str(tmp_path / "lengths.csv")
    first = rows("input_tokens,output_tokens\n1,2\n")
    with pytest.raises(ValueError, match="read-only"):  # it is the next run's too
        first.prompt_len[0] = 7
    assert pairs(rows("input_tokens,output_tokens\n3,4\n")) == [(3, 4)]
    assert pairs(rows("a,output_tokens\n5,6\n", input_column="a")) == [(5, 6)]
    assert pairs(first) == pairs(rows("input_tokens,output_tokens\n1,2\n")) == [(1, 2)]


def test_timestamps_give_the_order_and_start_at_zero(tmp_path):
    path = put(
        tmp_path, "timed.csv", "arrival_s,input_tokens,output_tokens\n7.5,1,2\n5,3,4\n6,5,6\n"
    )
    rows = CsvLengths(path).rows(None, 0)
    assert pairs(rows) == [(3, 4), (5, 6), (1, 2)]
    assert rows.arrival_s.tolist() == [0.0, 1.0, 2.5]
    assert CsvLengths(path).rows(3, 0).arrival_s is None


@pytest.mark.parametrize("name", ["kept.csv", "kept.csv.gz"])
def test_written_lengths_are_read_back(tmp_path, name):
    path = str(tmp_path / name)
    kept = Rows(np.array([3, 4]), np.array([5, 6]), arrival_s=np.array([0.0, 1.25]))
    write_lengths(path, kept)
    again = CsvLengths(path).rows(None, 0)
    assert pairs(again) == pairs(kept)
    assert again.arrival_s.tolist() == [0.0, 1.25]
    content = b"input_tokens,output_tokens,arrival_s\n3,5,0.0\n4,6,1.25\n"
    assert Path(path).read_bytes() == (
        gzip.compress(content, mtime=0) if name.endswith(".gz") else content
    )


def test_column_names_can_be_configured(tmp_path):
    path = put(tmp_path, "named.csv", "p,x,o\n1,9,2\n")
    named = CsvLengths(path, input_column="p", output_column="o", ignored_columns=("x",))
    assert pairs(named.rows(None, 0)) == [(1, 2)]


@pytest.mark.parametrize("max_len", [None, 300])
def test_longer_fitted_run_starts_with_the_shorter_one(max_len):
    trace = Fitted("sharegpt")
    assert pairs(trace.rows(500, 1, max_len)) == pairs(trace.rows(900, 1, max_len))[:500]


@pytest.mark.parametrize(
    ("ask", "culprit"),
    [
        (lambda: Fitted("sharegpt").rows(None, 0), "sharegpt: a drawn trace has no end"),
        (lambda: Fitted("share").rows(1, 0), "model='share': is not a model of .*alpaca.*sharegpt"),
        (lambda: Fitted("alpaca", registered_prefix=-1), "prefix=-1"),
        (
            lambda: Fitted("alpaca", registered_prefix=200).rows(1, 0, max_len=200),
            "hardly any row is shorter than 200",
        ),
    ],
)
def test_bad_trace_settings_are_refused(ask, culprit):
    refuses(culprit, ask)


TABLE = "input_tokens,output_tokens,arrival_s,prompt_ids\n"


def test_prompt_ids_round_trip_through_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TABLE + "33,5,0.0,7 8 9\n16,2,0.5,7\n")
    rows = CsvLengths(str(path)).read()
    assert (rows.prompt_ids, rows.tokens_per_id) == ([(7, 8, 9), (7,)], 16)
    again = tmp_path / "again.csv.gz"
    write_lengths(str(again), rows)
    assert CsvLengths(str(again)).read().prompt_ids == rows.prompt_ids
    write_lengths(str(path), Rows(np.array([3]), np.array([1])))
    assert path.read_text() == "input_tokens,output_tokens\n3,1\n"
    assert CsvLengths(str(path)).read().prompt_ids is None


def test_long_prompt_ids_are_one_csv_field(tmp_path):
    path = put(
        tmp_path, "t.csv", f"{TABLE}40000,1,0.0,{' '.join(map(str, range(100_000, 140_000)))}\n"
    )
    (ids,) = CsvLengths(path, tokens_per_id=1).read().prompt_ids
    assert ids == tuple(range(100_000, 140_000))


# mean prompt, mean output, Spearman, (p50, p95, p99) of prompt, and of output; counted in the
# length files
FACTS = {
    "sharegpt": (161.18, 338.00, 0.2143, (35, 863, 1460), (271, 899, 1280)),
    "alpaca": (18.66, 58.06, -0.2987, (15, 40, 74), (43, 160, 258)),
}


@pytest.mark.parametrize("name", FACTS)
def test_embedded_length_models_match_their_statistics(name):
    rows = Fitted(name).rows(400_000, seed=1)
    mean_prompt, mean_output, correlation, of_prompt, of_output = FACTS[name]
    assert rows.prompt_len.mean() == pytest.approx(mean_prompt, rel=0.02)
    assert rows.output_len.mean() == pytest.approx(mean_output, rel=0.02)
    ranks = pd.DataFrame({"prompt": rows.prompt_len, "output": rows.output_len}).rank()
    assert ranks["prompt"].corr(ranks["output"]) == pytest.approx(correlation, abs=0.01)
    for values, expected in ((rows.prompt_len, of_prompt), (rows.output_len, of_output)):
        assert np.quantile(values, [0.5, 0.95, 0.99]) == pytest.approx(expected, rel=0.05, abs=1)
        assert values.min() >= 1
    assert (rows.prompt_len + rows.output_len).max() < 2048  # the filter they were fitted under


def test_sessions_and_priorities_stay_with_their_rows(tmp_path):
    path = put(
        tmp_path,
        "named.csv",
        "input_tokens,output_tokens,session,priority\n5,1,b,0\n6,1,a,-1\n7,1,b,2\n",
    )
    whole = CsvLengths(path).read()
    assert (whole.session.tolist(), whole.priority.tolist()) == ([0, 1, 0], [0, -1, 2])
    drawn = CsvLengths(path).rows(9, 1)
    read_rows = zip(
        drawn.prompt_len.tolist(), drawn.session.tolist(), drawn.priority.tolist(), strict=True
    )
    assert set(read_rows) == {(5, 0, 0), (6, 1, -1), (7, 0, 2)}
    requests = list(Workload(whole, np.zeros(3, np.int64)))
    assert [(r.incoming.session, r.incoming.priority) for r in requests] == [
        (0, 0),
        (1, -1),
        (0, 2),
    ]
    again = str(tmp_path / "again.csv")
    write_lengths(again, whole)
    assert CsvLengths(again).read().priority.tolist() == [0, -1, 2]


def test_a_conversation_is_a_session():
    rows = ChatHistories().rows(60, 3)
    ids = {session: set() for session in rows.session.tolist()}
    for session, content in zip(rows.session.tolist(), rows.prompt_ids, strict=True):
        ids[session].update(content)
    assert len(ids) > 3
    assert sum(map(len, ids.values())) == len(set().union(*ids.values()))


def test_a_log_of_the_engine_may_have_sessions_and_priorities(tmp_path):
    times = '"queued_ts": 1, "first_token_ts": 2, "last_token_ts": 3'
    line = '{"input_toks": 4, "output_toks": 2, ' + times + "%s}\n"
    other = line.replace('"input_toks": 4', '"input_toks": 5')
    path = put(
        tmp_path,
        "log.jsonl",
        line % ', "session_id": "x", "priority": 3' + other % ', "session_id": "y"',
    )
    rows = VllmLog(path).read()
    assert (rows.session.tolist(), rows.priority.tolist()) == ([0, 1], [3, 0])
    path = put(tmp_path, "bad.jsonl", line % ', "priority": "low"')
    refuses("line 1: priority='low'", lambda: VllmLog(path).read())
    path = put(tmp_path, "bad.jsonl", line % ', "session_id": 0.5')
    refuses(
        "line 1: priority=None, session_id=0.5: not a whole number and a name",
        lambda: VllmLog(path).read(),
    )
