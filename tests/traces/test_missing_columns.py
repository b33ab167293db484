"""Readers of others' files without each column that they need, with a column of another name, with
times in another unit, and with a run twice: refused with the file's name, or read if the column is
optional.
"""

import json
import math

import pytest
from refusals import refuses

from testbed.core.errors import InputError
from testbed.traces.azure import AzureCsv
from testbed.traces.burstgpt import BurstGptCsv
from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.mooncake import MooncakeJsonl
from testbed.traces.time_units import PER_S
from testbed.traces.vllm_log import VllmLog


def as_csv(rows):
    head = ",".join(rows[0])
    return "\n".join([head, *(",".join(map(str, row.values())) for row in rows)])


def as_lines(rows):
    return "\n".join(map(json.dumps, rows))


def as_bench(rows):
    return json.dumps({name: [row[name] for row in rows] for name in rows[0]})


def as_sglang(rows):
    lists = {name: [row[name] for row in rows] for name in rows[0]}
    run = {
        "completed": len(rows),
        "duration": 0.24,
        "request_rate": math.inf,
        "max_concurrency": None,
        "total_output_tokens_retokenized": 6,
    }
    return json.dumps(run | lists)


def as_guidellm(rows):
    return json.dumps({"benchmarks": [{"requests": {"successful": rows}}]})


def as_aiperf(rows):
    return as_lines(
        {
            "metadata": {name: row[name] for name in row if name.endswith("_ns")},
            "metrics": {name: row[name] for name in row if not name.endswith("_ns")},
        }
        for row in rows
    )


MS = {"unit": "ms"}
COUNT = {"unit": "tokens"}
# Reader, its file, how its rows are written, two rows, and the columns without which it reads
READERS = {
    "azure": (
        AzureCsv,
        "a.csv",
        as_csv,
        [
            {"TIMESTAMP": f"2023-11-16 18:15:4{i}", "ContextTokens": 9, "GeneratedTokens": 3}
            for i in (1, 2)
        ],
        (),
    ),
    "burstgpt": (
        BurstGptCsv,
        "b.csv",
        as_csv,
        [
            {"Timestamp": 5 * i, "Session ID": "s", "Request tokens": 9, "Response tokens": 3}
            for i in (1, 2)
        ],
        ("Session ID",),
    ),
    "csv": (
        CsvLengths,
        "c.csv",
        as_csv,
        [{"arrival_s": i, "input_tokens": 9, "output_tokens": 3} for i in (1, 2)],
        ("arrival_s",),
    ),
    "mooncake": (
        MooncakeJsonl,
        "m.jsonl",
        as_lines,
        [{"timestamp": i, "input_length": 9, "output_length": 3} for i in (1, 2)],
        ("timestamp",),
    ),
    "log, csv": (
        VllmLog,
        "l.csv",
        as_csv,
        [
            {
                "input_tokens": 9,
                "output_tokens": 3,
                "arrival_s": i,
                "first_token_s": i + 0.1,
                "finish_s": i + 0.2,
            }
            for i in (1, 2)
        ],
        (),
    ),
    "vllm bench": (
        VllmLog,
        "v.json",
        as_bench,
        [
            {
                "input_lens": 9,
                "output_lens": 3,
                "ttfts": 0.1 * i,
                "itls": [0.02, 0.02],
                "start_times": i,
            }
            for i in (1, 2)
        ],
        (),
    ),
    "sglang": (
        VllmLog,
        "s.jsonl",
        as_sglang,
        [
            {"input_lens": 9, "output_lens": 3, "ttfts": 0.1 * i, "itls": [0.02, 0.02]}
            for i in (1, 2)
        ],
        (),
    ),
    "guidellm": (
        VllmLog,
        "g.json",
        as_guidellm,
        [
            {
                "prompt_tokens": 9,
                "output_tokens": 3,
                "start_time": i,
                "first_token_time": i + 0.1,
                "last_token_time": i + 0.2,
            }
            for i in (1, 2)
        ],
        (),
    ),
    "aiperf": (
        VllmLog,
        "p.jsonl",
        as_aiperf,
        [
            {
                "request_start_ns": i * 10**9,
                "time_to_first_token": {"value": 100.0 * i, **MS},
                "request_latency": {"value": 300.0, **MS},
                "input_sequence_length": {"value": 9, **COUNT},
                "output_sequence_length": {"value": 3, **COUNT},
            }
            for i in (1, 2)
        ],
        (),
    ),
}
MISSING = [(name, column) for name, (_, _, _, rows, _) in READERS.items() for column in rows[0]]


def lengths(kind, path):
    """The lengths that a reader finds."""
    rows = kind(str(path)).rows(None, 0)
    return rows.prompt_len.tolist(), rows.output_len.tolist()


@pytest.mark.parametrize("name", READERS)
def test_a_whole_file_is_read(tmp_path, name):
    kind, file, written, rows, _ = READERS[name]
    (tmp_path / file).write_text(written(rows))
    assert lengths(kind, tmp_path / file) == ([9, 9], [3, 3])


@pytest.mark.parametrize(("name", "column"), MISSING)
def test_a_file_without_a_column_is_refused_by_its_name_or_read(tmp_path, name, column):
    kind, file, written, rows, optional = READERS[name]
    without = [{key: value for key, value in row.items() if key != column} for row in rows]
    (tmp_path / file).write_text(written(without))
    if column in optional:
        assert lengths(kind, tmp_path / file) == ([9, 9], [3, 3])
    else:
        refuses(file, lengths, kind, tmp_path / file)


@pytest.mark.parametrize(("name", "column"), MISSING)
def test_a_column_of_another_name_is_never_taken_for_another(tmp_path, name, column):
    kind, file, written, rows, optional = READERS[name]
    renamed = [{f"{key}_x" if key == column else key: row[key] for key in row} for row in rows]
    (tmp_path / file).write_text(written(renamed))
    if column not in optional:
        refuses(file, lengths, kind, tmp_path / file)


@pytest.mark.parametrize("name", [name for name, case in READERS.items() if case[0] is VllmLog])
def test_a_second_copy_of_a_run_in_one_file_is_refused(tmp_path, name):
    kind, file, written, rows, _ = READERS[name]
    (tmp_path / file).write_text(written([*rows, *rows]))
    refuses(file, lengths, kind, tmp_path / file)


def scaled(value, factor):
    """Times in another unit; a column has its times, a list of gaps, or a value with its unit."""
    if isinstance(value, list):
        return [scaled(each, factor) for each in value]
    if isinstance(value, dict):
        return (
            {**value, "value": scaled(value["value"], factor)} if value["unit"] == "ms" else value
        )
    return value * factor


COUNTS = ("input_tokens", "output_tokens", "prompt_tokens", "input_lens", "output_lens")


@pytest.mark.parametrize("factor", [1000, 1 / 3600], ids=["milliseconds", "hours"])
@pytest.mark.parametrize("name", [name for name, case in READERS.items() if case[0] is VllmLog])
def test_times_of_a_log_in_another_unit_are_refused(tmp_path, name, factor):
    """By the gaps between tokens."""
    kind, file, written, rows, _ = READERS[name]
    other = [
        {key: value if key in COUNTS else scaled(value, factor) for key, value in row.items()}
        for row in rows
    ]
    (tmp_path / file).write_text(written(other))
    refuses(file, lengths, kind, tmp_path / file)


# A reader of bare times of arrival, its file, a row at a time, and the unit that its format says
ARRIVALS = {
    "csv": (CsvLengths, "c.csv", ("arrival_s", "input_tokens", "output_tokens"), "s"),
    "azure": (AzureCsv, "a.csv", ("arrival_s", "input_tokens", "output_tokens"), "s"),
    "burstgpt": (BurstGptCsv, "b.csv", ("Timestamp", "Request tokens", "Response tokens"), "s"),
    "mooncake": (MooncakeJsonl, "m.jsonl", ("timestamp", "input_length", "output_length"), "ms"),
}


def arrivals_of(name, folder, unit):
    """A file of three requests a second in a unit, and its reader."""
    kind, file, (time, *lengths_of), _ = ARRIVALS[name]
    times = [round(i * PER_S[unit] / 3) for i in range(120)]
    rows = [{time: moment, **dict.fromkeys(lengths_of, 9)} for moment in times]
    (folder / file).write_text((as_lines if kind is MooncakeJsonl else as_csv)(rows))
    return kind, str(folder / file)


@pytest.mark.parametrize("unit", PER_S)
@pytest.mark.parametrize("name", ARRIVALS)
def test_bare_arrivals_in_another_unit_are_refused(tmp_path, name, unit):
    kind, path = arrivals_of(name, tmp_path, unit)
    if unit == ARRIVALS[name][-1]:
        assert kind(path).rows(None, 0).arrival_s[-1] == pytest.approx(119 / 3, abs=0.5)
    else:
        refuses("trace.time_unit", lambda path: kind(str(path)).rows(None, 0), path)


@pytest.mark.parametrize("unit", PER_S)
@pytest.mark.parametrize("name", ["csv", "mooncake"])
def test_bare_arrivals_in_the_unit_that_is_given_are_read(tmp_path, name, unit):
    kind, path = arrivals_of(name, tmp_path, unit)
    rows = kind(path, time_unit=unit).rows(None, 0)
    assert rows.arrival_s[-1] == pytest.approx(119 / 3, abs=0.5)
    with pytest.raises(InputError, match=r"trace\.time_unit"):
        kind(path, time_unit="min")
