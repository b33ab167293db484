"""The vLLM that is installed, in a process and with packages of its own."""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from threading import Timer
from typing import Any

from testbed.core.errors import InputError

IN_VLLM = Path(__file__).with_name("in_vllm")
LOG = "vllm.log"
SPOKEN = "testbed: "
ASKED = (
    "import vllm; from vllm.platforms import current_platform; "
    "print(vllm.__version__, current_platform.is_cuda())"
)
ERROR = re.compile(
    r"^(?:\([^)]*\) )?(?:ERROR \S+ \S+ \[[^]]*\] )?([\w.]*(?:Error|Exception)): (.+)"
)
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
NO_GPU = "vLLM finds no NVIDIA GPU on this machine"


def check_installed(python: str) -> str:
    """The release of the vLLM that this Python has; InputError without one, or without a GPU."""
    try:
        answer = subprocess.run([python, "-c", ASKED], capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError(f"--python {python}: cannot be run ({error.strerror})") from None
    if answer.returncode:
        reason = last_error(answer.stderr) or "it ends with an error"
        raise InputError(
            f"--python {python}: cannot import vLLM: {reason} (pip install vllm, or give the "
            f"Python of its environment)"
        )
    release, has_gpu = answer.stdout.split()[-2:]
    if has_gpu != "True":
        raise InputError(f"--python {python}: has vLLM {release}, but {NO_GPU}")
    return release


def run_plan(python: str, plan: Mapping[str, Any], folder: Path, limit_s: float) -> None:
    """Let a vLLM carry out a plan as in_vllm/drive.py reads it; prints how far it is.

    Its output goes to vllm.log in the folder. Raises InputError where it fails, or does not end
    within limit_s seconds.
    """
    plan_file = folder / "plan.json"
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    words = [python, str(IN_VLLM / "drive.py"), str(plan_file), str(folder)]
    log = folder / LOG
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
            start_new_session=True,
        )
        killer = Timer(limit_s, _stop, [process])
        killer.start()
        try:
            _follow(process, file)
            code = process.wait()
        finally:
            has_run_out = not killer.is_alive()
            killer.cancel()
            _stop(process)
    if code == -SIGKILL and has_run_out:
        raise InputError(f"vLLM: did not end within {limit_s:.0f} s (all of its output: {log})")
    if code:
        reason = last_error(log.read_text(encoding="utf-8")) or f"exit code {code}"
        raise InputError(f"vLLM: {reason} (all of it: {log})")


def _environment() -> dict[str, str]:
    """With the modules that vLLM loads by name, and nothing downloaded."""
    known = [str(IN_VLLM), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**QUIET, **os.environ, "PYTHONPATH": os.pathsep.join(known)}


def _follow(process: "subprocess.Popen[str]", log: Any) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        log.write(line)
        if line.startswith(SPOKEN):
            print(line.removeprefix(SPOKEN), end="", flush=True)


def _stop(process: "subprocess.Popen[str]") -> None:
    """End vLLM and the processes that it has started, which may outlive it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGKILL)


def last_error(text: str) -> str | None:
    """The first line of the error that a program ended with, without its traceback.

    vLLM's own processes report first what the parent then repeats in general words.
    """
    errors = [match for line in text.splitlines() if (match := ERROR.match(line))]
    causes = [match for match in errors if "Engine core initialization failed" not in match[2]]
    if not causes:
        usage = [line for line in text.splitlines() if ": error: " in line]
        return usage[-1].partition(": error: ")[2] if usage else None
    return f"{causes[-1][1].rpartition('.')[2]}: {causes[-1][2][:300]}"


def engine_words(words: Sequence[str]) -> list[str]:
    """The words behind `vllm serve` as an engine's parser has them: the model as an option."""
    if words and not words[0].startswith("-"):
        return ["--model", *words]
    return list(words)
