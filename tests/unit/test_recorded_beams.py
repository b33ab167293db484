"""A record of beam searches: replayed as it is, and refused by name where it makes no sense."""

import pytest

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.sched.recorded_beams import RecordedBeams

HEADER = "request,step,parent,child\n"


def record(tmp_path, text):
    path = tmp_path / "beams.csv"
    path.write_text(text)
    return RecordedBeams(str(path))


def beam(request_id, width=3):
    return Request(request_id, 0, 10, 20, num_seqs=width, beam=True)


def test_requests_follow_the_searches_in_turn_and_again(tmp_path):
    beams = record(tmp_path, HEADER + "7,2,0,1\n7,4,2,0\n7,4,2,1\n9,3,1,2\n")
    assert [beams.parents(beam(0), n) for n in range(2, 6)] == [((0, 1),), (), ((2, 0), (2, 1)), ((0, 1),)]
    assert [beams.parents(beam(1), n) for n in range(2, 5)] == [(), ((1, 2),), ()]
    assert beams.parents(beam(2), 2) == ((0, 1),)


def test_a_line_without_a_pair_says_that_all_survive(tmp_path):
    beams = record(tmp_path, HEADER + "0,2,0,1\n0,4,,\n1,3,,\n")
    assert [beams.parents(beam(0), n) for n in range(2, 7)] == [((0, 1),), (), (), ((0, 1),), ()]
    assert [beams.parents(beam(1), n) for n in range(2, 5)] == [(), (), ()]


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("request,step\n", "its first line must be request,step,parent,child"),
        (HEADER, "it has no lines"),
        (HEADER + "0,1,0,1\n", "line 2: '0,1,0,1'; a line has 4 whole numbers, the step at least 2"),
        (HEADER + "0,2,0,-1\n", "line 2"),
        (HEADER + "0,2,0,\n", "line 2: '0,2,0,'; a line has 4 whole numbers"),
        (HEADER + "0,2,0,1\n0,2,1,2\n", "line 3: candidate 2 replaces, or is replaced, twice"),
        (HEADER + "0,2,0,1\n0,2,2,1\n", "line 3: candidate 1"),
        (HEADER + "0,2,0,3\n", r"\(\(0, 3\),\) at step 2 for a beam of width 3"),
    ],
)
def test_nonsense_is_refused_by_name(tmp_path, text, culprit):
    with pytest.raises(InputError, match=culprit):
        record(tmp_path, text).parents(beam(0), 2)
