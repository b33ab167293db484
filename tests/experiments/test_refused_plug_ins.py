"""Classes and files of a user's that are no policy, exit, raise, or answer what nothing can read:
`testbed run` names them in one line.
"""

import pytest
from refusals import check_words

PLUG_INS = [
    pytest.param(
        "policy=syntax_mistake:Policy", ("syntax_mistake",), id="a class in a file with mistakes"
    ),
    pytest.param(
        "policy=not_a_policy:Policy",
        ("no testbed.memory.policy.MemoryPolicy",),
        id="a class that is no policy",
    ),
    pytest.param(
        "policy=custom policy._target_=own_parts.nothing",
        ("own_parts.nothing",),
        id="a function that gives no policy",
    ),
    pytest.param(
        "trace=custom trace._target_=own_parts.Rowless",
        ("own_parts.Rowless.rows",),
        id="a trace that gives no rows",
    ),
    pytest.param(
        "scheduler=custom scheduler._target_=own_parts.Bare",
        (
            "own_parts.Bare",
            "~scheduler.max_num_seqs",
        ),
        id="a scheduler that takes fewer limits",
    ),
    pytest.param(
        "policy=custom policy._target_=exits.Policy",
        ("exits.Policy",),
        id="a plug-in that exits on import",
    ),
    pytest.param(
        "policy=custom policy._target_=raises.Policy",
        ("raises.Policy",),
        id="a plug-in that raises on import",
    ),
    pytest.param(
        "policy=custom policy._target_=own_parts.LeavesLate",
        ("sys.exit(0)",),
        id="a plug-in that exits in the middle",
    ),
    pytest.param(
        "trace=csv trace.path=timed.csv arrivals=custom arrivals._target_=own_parts.Replayed",
        ("own_parts.Replayed: gave 1 times",),
        id="a replay that has not a time for each row",
    ),
]


@pytest.mark.parametrize(("line", "words"), PLUG_INS)
def test_plug_ins_that_cannot_be_used_are_refused_by_name(refused, line, words):
    check_words(words, refused(f"run {line}"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("Fractions", id="fractions of picoseconds"),
        pytest.param("Text", id="text"),
        pytest.param("Beyond", id="beyond 64 bits"),
    ],
)
def test_arrival_times_that_are_no_picoseconds_are_refused_by_class(refused, name):
    target = f"own_parts.{name}"
    check_words((target,), refused(f"run arrivals=custom arrivals._target_={target}"))
