"""Content ids in CSV traces: read, written, fitting their lengths, however long."""

import numpy as np
import pytest

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.csv_lengths import CsvLengths, write_lengths

TABLE = "input_tokens,output_tokens,arrival_s,content_ids\n"


def test_content_is_read_and_written_again(tmp_path):
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


@pytest.mark.parametrize(
    ("row", "size", "message"),
    [
        (
            "33,5,0.0,7 8",
            16,
            "line 2, column content_ids: 2 ids for 33 tokens, 3 wanted at one for each 16",
        ),
        ("33,5,0.0,7 x 9", 16, "'7 x 9' is not whole numbers"),
        ("33,5,0.0,7 8 9", 0, "tokens_per_id is 0"),
    ],
)
def test_content_that_does_not_go_with_its_length_is_named(tmp_path, row, size, message):
    path = tmp_path / "t.csv"
    path.write_text(f"{TABLE}{row}\n")
    with pytest.raises(InputError, match=message):
        CsvLengths(str(path), tokens_per_id=size).read()


def test_long_content_is_one_field(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{TABLE}40000,1,0.0,{' '.join(map(str, range(100_000, 140_000)))}\n")
    (ids,) = CsvLengths(str(path), tokens_per_id=1).read().prompt_ids
    assert ids == tuple(range(100_000, 140_000))
