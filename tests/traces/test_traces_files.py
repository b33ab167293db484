"""Every way a file can be bad is one line that names it."""

import gzip

import pytest
from refusals import refuses

from testbed.core.errors import InputError
from testbed.traces.csv_lengths import CsvLengths

HEADER = "input_tokens,output_tokens\n"
PACKED = gzip.compress((HEADER + "21,518\n" * 5000).encode())


def read(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return CsvLengths(str(path)).rows(None, 0)


@pytest.mark.parametrize(
    ("name", "content", "culprit"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", HEADER, "has a header but no rows"),
        ("a.csv", "input_tokens,out\n1,2\n", "no column 'output_tokens'; it has input_tokens, out"),
        ("a.csv", "input_tokens,input_tokens,output_tokens\n1,2,3\n", "input_tokens"),
        ("a.csv", HEADER + "1,2\n0,5\n", "line 3, column input_tokens: '0' is not a whole number"),
        ("a.csv", HEADER + "1,2\n4,-5\n", "line 3, column output_tokens: '-5'"),
        ("a.csv", HEADER + "1,2\n4,x\n", "line 3, column output_tokens: 'x'"),
        ("a.csv", HEADER + "1.5,2\n", "line 2, column input_tokens: '1.5'"),
        ("a.csv", HEADER + "1,2\n3\n", "line 3: 1 fields where the header has 2"),
        ("a.csv", HEADER + "1,2\n\n3,4\n", "line 3: 0 fields where the header has 2"),
        ("a.csv", "arrival_s," + HEADER + "inf,1,2\n", "line 2, column arrival_s: 'inf' is not a time"),
        ("a.csv", PACKED, "its name must end in .gz"),
        ("a.csv.gz", HEADER + "1,2\n", "not a valid gzip file"),
        ("a.csv.gz", PACKED[:-12], "the gzip file is truncated"),
        ("a.csv.gz", PACKED[:40] + b"?????" + PACKED[45:], "gzip file"),
    ],
)
def test_bad_file_is_refused_in_one_line(tmp_path, name, content, culprit):
    with pytest.raises(InputError) as caught:
        read(tmp_path, name, content)
    message = str(caught.value)
    assert name in message
    assert culprit in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["arrival_column", "prompt_ids_column"])
def test_a_configured_column_must_exist(tmp_path, name):
    (tmp_path / "a.csv").write_text(HEADER + "1,2\n")
    with pytest.raises(InputError, match="no column 'typo'; it has input_tokens, output_tokens"):
        CsvLengths(str(tmp_path / "a.csv"), **{name: "typo"}).rows(None, 0)


def test_missing_file_and_folder_are_refused(tmp_path):
    refuses(r"nowhere\.csv: no such file", lambda: CsvLengths(str(tmp_path / "nowhere.csv")).rows(None, 0))
    refuses("is a folder", lambda: CsvLengths(str(tmp_path)).rows(None, 0))


def test_whole_floats_bom_and_trailing_blank_lines_are_accepted(tmp_path):
    rows = read(tmp_path, "a.csv", "\ufeff" + HEADER + "3.0,4\r\n\n\n")
    assert (rows.prompt_len.tolist(), rows.output_len.tolist()) == ([3], [4])
