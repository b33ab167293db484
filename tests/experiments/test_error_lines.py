"""Every error becomes one line; paths are named by the shortest ends that differ; files of lengths
by name.
"""

from pathlib import Path

import pytest
from omegaconf.errors import OmegaConfBaseException
from refusals import check_refusal

from testbed.core.errors import DoesNotFit, InputError
from testbed.experiments.plan import pruning
from testbed.experiments.plan.bounds import DOES_NOT_FIT
from testbed.experiments.plan.space import Deployment
from testbed.experiments.runs.choice_names import length_file
from testbed.experiments.runs.error_lines import (
    error_behind,
    errors_behind,
    one_line,
    short_names,
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(2, "No such file", "a.csv"), "a.csv: No such file"),
        (OSError(28, "No space"), "output: No space"),
        (SystemExit(3), "a plug-in: calls sys.exit(3) (raise an error instead)"),
        (InputError(key="a", problem="is plain"), "a: is plain"),
        (ValueError("a\n  b.\n\nc; "), "ValueError: a; b. c"),
        (ValueError(""), "ValueError: unknown error"),
        (KeyError("k"), "KeyError: 'k'"),
        (RuntimeError(), "RuntimeError: unknown error"),
        (OmegaConfBaseException("bad:\nkey"), "OmegaConfBaseException: bad: key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_error_becomes_one_line(error, line):
    assert one_line(error).strip() == line


def raised(error, during=None, cause=None):
    """The error after it was raised in the handling of another one, from a cause."""
    error.__context__, error.__cause__ = during, cause
    return error


def test_both_the_cause_and_the_context_are_behind_an_error():
    lost, stopped = OSError(2, "No such file", "a.csv"), KeyboardInterrupt()
    for other, kind in ((lost, OSError), (stopped, KeyboardInterrupt)):
        for behind in (
            {"cause": other, "during": KeyError()},
            {"cause": KeyError(), "during": other},
        ):
            inner = raised(ValueError(), **behind)
            assert error_behind(raised(RuntimeError(), cause=inner), kind) is other
    assert error_behind(raised(RuntimeError(), cause=ValueError()), OSError) is None


def test_an_error_that_is_its_own_cause_is_behind_itself_once():
    refusal = InputError(key="a", problem="is plain")
    assert list(errors_behind(raised(refusal, during=refusal, cause=refusal))) == [refusal]
    outer = InputError(key="b", problem="is within")
    refusal.__cause__ = raised(outer, cause=refusal)
    assert list(errors_behind(outer)) == [outer, refusal]


def test_the_wrapped_refusal_rules_a_deployment_out_if_it_is_its_own_cause(
    monkeypatch,
):
    first = DoesNotFit(key="a", problem="is too large")
    wrapped = raised(InputError(key="b", problem="is within"), cause=first)
    first.__cause__ = first

    def refuse(deployment):
        raise wrapped

    monkeypatch.setattr(pruning, "candidate_of", refuse)
    candidates, [pruned] = pruning.examined([Deployment({}, ())], None)
    assert not candidates
    assert (pruned.limit, pruned.error) == (DOES_NOT_FIT, first)


PLUG_IN = """
from testbed.memory.paged.paged import Paged

class Broken(Paged):
    def extend(self, batch, num_tokens=1):
        return None + num_tokens
"""


def test_exception_of_a_plug_in_names_its_file_and_line(testbed, tmp_path):
    (tmp_path / "mine.py").write_text(PLUG_IN)
    line = testbed.refused("run", "policy=mine:Broken", "arrivals.duration_s=20")
    assert "TypeError" in line
    assert "(mine.py:6)" in line


def test_error_of_wrong_words_names_no_line(testbed):
    line = testbed.refused("run", "replicas=2", "router=round_robin", "prefill_replicas=0")
    assert ".py:" not in line


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["x", "y"], ["x", "y"]),
        (["a/x", "b/x"], ["a/x", "b/x"]),
        (["c/a/x", "c/b/x", "d/b/y"], ["a/x", "b/x", "b/y"]),
        (["r/a/x", "s/a/x"], ["r/a/x", "s/a/x"]),
    ],
)
def test_paths_are_named_by_the_shortest_ends_that_differ(paths, names):
    assert short_names([Path(path) for path in paths]) == names


@pytest.fixture
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tiny.csv", "a=b.csv"):
        (tmp_path / name).write_text("")


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize(
    ("text", "trace", "path"),
    [
        ("tiny.csv", "sharegpt", "tiny.csv"),
        ("alpaca=tiny.csv", "alpaca", "tiny.csv"),
        ("a=b.csv", "sharegpt", "a=b.csv"),
    ],
)
def test_file_of_lengths_is_of_sharegpt_unless_a_trace_is_named(text, trace, path):
    assert length_file(text) == (trace, path)


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lost=tiny.csv", ("no trace 'lost'", "sharegpt, alpaca")),
        ("alpaca=none.csv", ("none.csv", "no such file")),
        ("none.csv", ("none.csv", "no such file")),
    ],
)
def test_file_of_lengths_without_a_trace_or_a_file_is_refused(text, words):
    check_refusal(words, length_file, text)
