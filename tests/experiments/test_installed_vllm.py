"""Commands that drive the user's vLLM, if it is missing, has no GPU, or fails. The Pythons here
are scripts that answer as one would that has such a vLLM.
"""

import asyncio
import importlib
import json
import shutil
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from testbed.core.errors import InputError
from testbed.experiments.real.vllm_engine import installed
from testbed.experiments.real.vllm_engine.in_vllm.sweeps import waves
from testbed.experiments.real.vllm_engine.installed import (
    IN_VLLM,
    check_installed,
    engine_words,
    last_error,
    run_plan,
)
from testbed.experiments.real.vllm_engine.logged_steps import left_out

SERVER = "vllm serve meta-llama/Llama-3.1-8B --load-format dummy"
RELEASE = "0.20.2"


def python_that(tmp_path, *, answers="", does="exit 0"):
    """A program that prints `answers` when it is asked for a release, and else does this."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo {answers}; exit 0; fi\n{does}\n')
    path.chmod(0o755)
    return str(path)


def ends_within(pid, limit_s=60):
    """The kernel ends a killed process when it next runs it, which is after `kill` returns."""
    status = Path(f"/proc/{pid}/stat")
    end_s = time.monotonic() + limit_s
    while status.exists() and status.read_text().split()[2] != "Z":  # ended, if not waited for
        assert time.monotonic() < end_s, f"process {pid} still runs after {limit_s} s"
        time.sleep(0.01)


def test_a_python_without_vllm_is_named():
    with pytest.raises(InputError, match="--python "):
        check_installed(sys.executable)


def test_a_python_that_is_none_is_named(tmp_path):
    with pytest.raises(InputError, match="none: "):
        check_installed(str(tmp_path / "none"))


def test_a_machine_without_a_gpu_is_named(tmp_path):
    with pytest.raises(InputError, match="no NVIDIA GPU"):
        check_installed(python_that(tmp_path, answers=f"{RELEASE} False"))
    assert check_installed(python_that(tmp_path, answers=f"{RELEASE} True")) == RELEASE


@pytest.mark.parametrize(
    ("does", "message"),
    [
        pytest.param("exit 3", "it ended with exit code 3", id="it ends without a word"),
        pytest.param("kill -ABRT $$", "it was ended by SIGABRT", id="it is ended"),
        pytest.param("exit 0", "it answers no release", id="it is no Python"),
        pytest.param("sleep 60", "it takes over 0 s", id="it hangs"),
    ],
)
def test_a_python_that_fails_otherwise_is_named(tmp_path, monkeypatch, does, message):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    if does.startswith("sleep"):
        monkeypatch.setattr(installed, "IMPORT_S", 0.2)
    with pytest.raises(InputError, match=f"cannot import vLLM: {message}"):
        check_installed(str(path))


def test_the_cause_of_a_failure_is_one_line(tmp_path):
    """The words of vLLM's engine come before those of its parent."""
    cause = "(EngineCore pid=7) ERROR 11-26 16:46:54 [core.py:9] ValueError: No available memory"
    general = "RuntimeError: Engine core initialization failed. See root cause above."
    python = python_that(tmp_path, does=f"echo '{cause}'; echo '{general}'; exit 1")
    with pytest.raises(InputError, match="vLLM: ValueError: No available memory"):
        run_plan(python, {}, tmp_path, 10)
    assert cause in (tmp_path / "vllm.log").read_text()


def test_a_wrong_option_is_one_line():
    usage = "usage: x\ndrive.py: error: argument --dtype: invalid choice: 'int3'"
    assert last_error(usage) == "argument --dtype: invalid choice: 'int3'"
    assert last_error("all is well") is None


def test_progress_is_printed_and_the_rest_is_kept(tmp_path, capsys):
    python = python_that(tmp_path, does="echo noise; echo 'testbed: 1 of 2: prompts, 0.1 s'")
    run_plan(python, {"waves": []}, tmp_path, 10)
    assert capsys.readouterr().out == "1 of 2: prompts, 0.1 s\n"
    assert "noise" in (tmp_path / "vllm.log").read_text()
    assert json.loads((tmp_path / "plan.json").read_text()) == {"waves": []}


def test_a_vllm_that_hangs_is_ended_with_its_children(tmp_path):
    child = tmp_path / "child"
    python = python_that(tmp_path, does=f"sleep 60 & echo $! > {child}; sleep 60")
    with pytest.raises(InputError, match="did not end within 2 s"):
        run_plan(python, {}, tmp_path, 2)
    ends_within(int(child.read_text()))


def test_what_outlives_a_vllm_that_fails_is_not_waited_for_and_ended(tmp_path):
    """The child has the output open, as an engine's processes do."""
    child = tmp_path / "child"
    python = python_that(tmp_path, does=f"sleep 60 & echo $! > {child}; echo noise; exit 3")
    began = time.monotonic()
    with pytest.raises(InputError, match="exit code 3"):
        run_plan(python, {}, tmp_path, 60)
    assert time.monotonic() - began < 30
    assert (tmp_path / "vllm.log").read_text() == "noise\n"
    ends_within(int(child.read_text()))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["m", "--dtype", "half"], ["--model", "m", "--dtype", "half"]),
        (["--model", "m"], ["--model", "m"]),
    ],
)
def test_the_model_is_an_option_of_the_engine(words, expected):
    assert engine_words(words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--system", "vllm"], "needs the server", id="no command"),
        pytest.param(
            ["--system", "vllm", "--from-vllm", "ollama serve"], "is not a command", id="no vLLM"
        ),
        pytest.param(
            ["--system", "vllm", "--from-vllm", SERVER, "--model", "opt-13b"],
            "nothing reads it",
            id="a model beside the command",
        ),
        pytest.param(
            ["--system", "vllm", "--from-vllm", SERVER, "--tp", "2"],
            "--tp: nothing reads it",
            id="a degree beside the command",
        ),
        pytest.param(
            ["--from-vllm", SERVER, "--model", "opt-13b"], "nothing reads it", id="of the kernels"
        ),
        pytest.param(
            ["--model", "opt-13b", "--limit-s", "5"], "nothing reads it", id="a limit of none"
        ),
        pytest.param(
            ["--system", "vllm", "--from-vllm", SERVER, "--limit-s", "0"],
            "--limit-s 0: must be a number above 0",
            id="no time",
        ),
        pytest.param(
            ["--system", "vllm", "--from-vllm", SERVER, "--out", "."], "is a folder", id="a folder"
        ),
        pytest.param(["--system", "vllm", "--from-vllm", SERVER], "cannot import vLLM", id="none"),
    ],
)
def test_wrong_options_of_calibrate_are_refused(testbed, words, message):
    out = [] if "--out" in words else ["--out", "profile.json"]
    assert message in testbed.refused("gpu", "calibrate", *words, *out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--from-vllm", "ollama serve"], "is not a command", id="no vLLM"),
        pytest.param(["--from-vllm", f"{SERVER} --bogus"], "--bogus: is no option", id="an option"),
        pytest.param(["--from-vllm", SERVER, "--limit-s", "nan"], "above 0", id="no time"),
        pytest.param(["--from-vllm", SERVER], "cannot import vLLM", id="none"),
    ],
)
def test_wrong_options_of_record_are_refused(testbed, tmp_path, words, message):
    log = tmp_path / "log"
    asked = ["arrivals.rate=1", "arrivals.duration_s=5", "--out", str(log)]
    assert message in testbed.refused("gpu", "record", *words, *asked)
    assert not log.exists()


def test_a_log_that_an_error_names_is_there(testbed, tmp_path):
    """The output of a vLLM that failed, beside a profile that is not written."""
    python = python_that(tmp_path, answers=f"{RELEASE} True", does="echo noise; exit 3")
    words = ["--system", "vllm", "--from-vllm", SERVER, "--python", python]
    line = testbed.refused("gpu", "calibrate", *words, "--out", str(tmp_path / "profile.json"))
    log = Path(line.rpartition("all of it: ")[2].strip().removesuffix(")"))
    assert log.read_text() == "noise\n"
    shutil.rmtree(log.parent)
    assert not (tmp_path / "profile.json").exists()


LIMITS = {
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 128,
    "max_model_len": 4096,
    "pool_tokens": 40_000,
    "caches_prefixes": True,
}


def test_sweeps_keep_to_the_limits_of_the_server():
    for wave in waves(**LIMITS):
        longest = max((prompt + output for prompt, output in wave["running"]), default=0)
        held = sum(prompt for prompt, _ in wave["running"])
        for count, new, past in wave["prompts"]:
            longest = max(longest, new + past)
            held = max(held, count * (new + past))
        assert longest <= LIMITS["max_model_len"], wave["name"]
        assert held <= LIMITS["pool_tokens"], wave["name"]
        assert len(wave["running"]) <= LIMITS["max_num_seqs"]


H200 = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 1024,
    "max_model_len": 16384,
    "pool_tokens": 900_000,
    "caches_prefixes": False,
}
TILE = 128  # tokens


def test_lengths_beyond_the_graphs_are_at_any_place_of_a_tile():
    """None is a multiple of one, and on average they end in the middle."""
    swept = {new for wave in waves(**H200) for count, new, _ in wave["prompts"] if count == 1}
    beyond = sorted(new for new in swept if new > 512)
    assert 512 < beyond[0] < 600
    assert 7000 < beyond[-1] < 8192
    assert all(long / short < 1.2 for short, long in pairwise(beyond))
    assert all(new % TILE for new in beyond)
    assert np.mean([new % TILE for new in beyond]) == pytest.approx(TILE / 2, rel=0.05)


def test_each_pass_has_other_lengths_beyond_the_graphs():
    named = [wave for wave in waves(**H200) if wave["name"] == "prompts among 8 decodes"]
    beyond = [{new for _, new, _ in wave["prompts"] if new > 512} for wave in named]
    assert [len(each) for each in beyond] == [3, 3, 3]
    assert len(set.union(*beyond)) == 9


def test_passes_over_prompts_among_decodes_have_the_other_sweeps_between_them():
    names = [wave["name"] for wave in waves(**H200)]
    starts = [i for i, name in enumerate(names) if name == "prompts among 64 decodes"]
    ends = [i for i, name in enumerate(names) if name == "prompts among 8 decodes"]
    for ended, started in zip(ends, starts[1:], strict=False):
        assert all(name.startswith("decodes at") for name in names[ended + 1 : started])
        assert started - ended > 2
    assert ends[-1] == len(names) - 1


def test_a_large_pool_is_swept_in_the_time_of_a_smaller_one():
    """Most of the time of decodes goes to their prompts, and a batch may fill the pool."""
    most = max(sum(prompt for prompt, _ in wave["running"]) for wave in waves(**H200))
    assert most <= 400_000


def test_without_a_prefix_cache_nothing_is_asked_of_it():
    names = [wave["name"] for wave in waves(**{**LIMITS, "caches_prefixes": False})]
    assert not any("cached" in name for name in names)
    assert names[0] == "warm-up"


class IdleEngine:
    def shutdown(self):
        pass


def test_sweeps_beyond_the_time_limit_are_written_down(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(IN_VLLM))
    drive = importlib.import_module("drive")
    monkeypatch.setattr(drive, "engine_of", lambda arguments: IdleEngine())
    empty = [{"name": name, "running": [], "prompts": []} for name in ("first", "second")]
    plan = {"arguments": [], "waves": empty}
    asyncio.run(drive.main({**plan, "deadline_s": 60}, tmp_path))
    assert left_out(tmp_path) == []
    asyncio.run(drive.main({**plan, "deadline_s": -1}, tmp_path))
    assert left_out(tmp_path) == ["first", "second"]
    assert "out of time before 1 of 2: first" in capsys.readouterr().out
