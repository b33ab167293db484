"""The command itself: help, exit codes, tracebacks on request, and the working folder's modules."""

import pytest
from refusals import check_words

from testbed.core.errors import InputError
from testbed.experiments.cli import main as cli


def test_commands_are_listed_without_arguments(testbed):
    output = testbed.done()
    check_words(("run", "reproduce", "capacity", "compare", "report", "validate"), output)
    assert output == testbed.done("--help")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        pytest.param(KeyboardInterrupt(), 130, ("interrupted",), id="interrupted"),
        pytest.param(cli.Terminated(), 143, ("terminated",), id="terminated"),
        pytest.param(RuntimeError("bad"), 2, ("error: RuntimeError: bad",), id="any error"),
        pytest.param(
            InputError(key="it", problem="is worse"), 2, ("error: it: is worse",), id="wrong input"
        ),
    ],
)
def test_exit_code_says_how_a_command_ended(testbed, monkeypatch, error, code, words):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli, "call", fail)
    exit_code, output, message = testbed("list")
    assert (exit_code, output) == (code, "")
    check_words(words, message)
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "words", [("--debug", "report", "nowhere"), ("report", "--debug", "nowhere")]
)
def test_debug_raises_the_error_wherever_it_stands(testbed, words):
    with pytest.raises(InputError, match="nowhere"):
        testbed(*words)


@pytest.mark.parametrize(("mistyped", "meant"), [("repot", "report"), ("lis", "list")])
def test_mistyped_command_is_refused_with_the_nearest_one(testbed, mistyped, meant):
    code, output, error = testbed(mistyped)
    assert (code, output) == (2, "")
    check_words((mistyped, meant), error)


def test_modules_of_the_working_folder_that_hide_a_package_are_named(testbed, tmp_path):
    (tmp_path / "testbed.py").write_text("")
    code, _, error = testbed("check", "example_policy:Slabs", "slab_size")
    assert code == 2
    check_words(("testbed.py is not imported", "slab_size: is not NAME=VALUE"), error)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(("reproduce", "--jobs", "0", "fig2"), ("--jobs", "0"), id="no process"),
        pytest.param(("validate", "x", "--within", "inf"), ("--within", "inf"), id="infinite"),
        pytest.param(("validate", "x", "--within", "-1"), ("--within", "-1"), id="negative"),
        pytest.param(
            ("check", "a:B", "--examples", "1.5"), ("--examples", "1.5"), id="one and a half"
        ),
        pytest.param(
            ("show", "timeline", "x", "--to", "-0.1"), ("--to", "-0.1"), id="before the start"
        ),
        pytest.param(
            ("show", "timeline", "x", "--to", "9000001"), ("--to", "9000001"), id="beyond time"
        ),
    ],
)
def test_values_of_options_outside_of_their_range_are_refused(testbed, words, parts):
    code, output, error = testbed(*words)
    assert (code, output) == (2, "")
    check_words(parts, error)


@pytest.mark.parametrize("command", ["memory", "timeline"])
def test_an_empty_interval_of_time_is_refused(testbed, tiny, command):
    testbed.done("run", *tiny, "outputs=summary", "hydra.run.dir=tiny")
    error = testbed.refused("show", command, "tiny", "--from", "2", "--to", "1")
    check_words(("--from 2", "--to 1", "empty interval"), error)
