"""Files that are refused, in one line that names the place: those of refused.toml, and long or
packed ones.
"""

import gzip
import json
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from refusals import refuses
from trace_files import put

from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.files import read_json
from testbed.traces.mooncake import MooncakeJsonl
from testbed.traces.servegen import ServeGenFolder

KEPT = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())
MOON = json.dumps({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}) + "\n"
HEADER = "input_tokens,output_tokens\n"
PACKED = gzip.compress((HEADER + "21,518\n" * 5000).encode())


@pytest.mark.parametrize("case", KEPT["refused"], ids=lambda case: f"{case['of']}: {case['says']}")
def test_a_bad_file_is_refused_by_name(tmp_path, case):
    module, _, name = case["of"].partition(".")
    for file, text in {**KEPT["beside"].get(module, {}), **case["files"]}.items():
        put(tmp_path, file, text)
    path = tmp_path if module == "servegen" else tmp_path / next(iter(case["files"]))
    reader, options = (
        getattr(import_module(f"testbed.traces.{module}"), name),
        case.get("options", {}),
    )
    said = refuses(
        case["says"], lambda: reader(str(path), **options).rows(5 if module == "chat" else None, 0)
    )
    assert str(path) in said or "tokens_per_id" in options


@pytest.mark.parametrize(
    ("name", "content", "read", "culprit"),
    [
        (
            "m.jsonl",
            MOON + "[" * 100_000,
            MooncakeJsonl,
            "line 2: JSON that cannot be read: maximum recursion depth",
        ),
        (
            "m.jsonl",
            MOON + '{"timestamp": ' + "9" * 5000,
            MooncakeJsonl,
            "line 2: JSON that .*: Exceeds the limit",
        ),
        (
            "a.json",
            "[" * 100_000,
            read_json,
            "line 1: JSON that cannot be read: maximum recursion depth",
        ),
        ("a.csv", PACKED, CsvLengths, r"its name must end in \.gz"),
        ("a.csv.gz", "", CsvLengths, "is empty"),
        ("b.csv.gz", PACKED[:-12], CsvLengths, "the gzip file is truncated"),
        ("c.csv.gz", PACKED[:40] + b"?????" + PACKED[45:], CsvLengths, "gzip file"),
        ("d.csv.gz", HEADER + "1,2\n", CsvLengths, "not a valid gzip file"),
    ],
)
def test_long_and_packed_files_are_refused(tmp_path, name, content, read, culprit):
    path = tmp_path / name
    plain = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(plain) if name == "a.csv.gz" else plain)
    refuses(f"{name}.*{culprit}", lambda: getattr(read(str(path)), "read", dict)())


@pytest.mark.parametrize("options", [{"start_s": -1}, {"duration_s": 0}])
def test_servegen_s_interval_must_be_one(options):
    refuses("must be at least 0, and above 0", ServeGenFolder, "folder", **options)
