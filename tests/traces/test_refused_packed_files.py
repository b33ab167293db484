"""Files that are too deep, too long, or packed by gzip otherwise than their names say."""

import gzip
import json

import pytest
from refusals import check_refusal

from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.files import read_json
from testbed.traces.mooncake import MooncakeJsonl

MOON = json.dumps({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}) + "\n"
HEADER = "input_tokens,output_tokens\n"
PACKED = gzip.compress((HEADER + "21,518\n" * 5000).encode())
TOO_DEEP = "JSON that cannot be read: maximum recursion depth"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[" * 100_000, TOO_DEEP, id="too deep"),
        pytest.param('{"timestamp": ' + "9" * 5000, "Exceeds the limit", id="a number too long"),
    ],
)
def test_json_that_python_cannot_read_is_refused_by_line(tmp_path, text, words):
    path = tmp_path / "m.jsonl"
    path.write_text(MOON + text)
    check_refusal(("m.jsonl, line 2", words), lambda: MooncakeJsonl(str(path)).read())


def test_json_file_that_is_too_deep_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[" * 100_000)
    check_refusal(("a.json, line 1", TOO_DEEP), read_json, str(path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param(
            "a.csv", PACKED, ("its name must end in .gz",), id="packed without the suffix"
        ),
        pytest.param("a.csv.gz", gzip.compress(b""), ("is empty",), id="packed emptiness"),
        pytest.param("b.csv.gz", PACKED[:-12], ("the gzip file is truncated",), id="truncated"),
        pytest.param(
            "c.csv.gz", PACKED[:40] + b"?????" + PACKED[45:], ("gzip file",), id="damaged"
        ),
        pytest.param(
            "d.csv.gz", (HEADER + "1,2\n").encode(), ("not a valid gzip file",), id="not packed"
        ),
    ],
)
def test_packed_files_are_refused_by_name(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    check_refusal((str(path), *words), lambda: CsvLengths(str(path)).read())


def test_ids_of_no_token_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "33,5\n")
    check_refusal(("tokens_per_id=0",), lambda: CsvLengths(str(path), tokens_per_id=0).read())
