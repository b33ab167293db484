"""The vLLM that is installed, in a process and with packages of its own."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, Signals
from typing import IO, Any

from testbed.core.errors import InputError

IN_VLLM = Path(__file__).with_name("in_vllm")
LOG = "vllm.log"
STATUS_PREFIX = "testbed: "
ASKED = (
    "import vllm; from vllm.platforms import current_platform; "
    "print(vllm.__version__, current_platform.is_cuda())"
)
ANSWER = re.compile(r"(?P<release>\d\S*) (?P<has_gpu>True|False)\s*\Z")
LOOKS_S = 0.1  # between looks at how far it is
IMPORT_S = 300.0  # more than a cold disk takes
ERROR = re.compile(
    r"^(?:\([^)]*\) )?(?:ERROR \S+ \S+ \[[^]]*\] )?([\w.]*(?:Error|Exception)): (.+)"
)
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
NO_GPU = "vLLM finds no NVIDIA GPU on this machine"


def check_installed(python: str) -> str:
    """The release of the vLLM that this Python has; InputError without one, or without a GPU."""
    words = [python, "-c", ASKED]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=IMPORT_S)
    except OSError as error:
        raise InputError(
            key="--python", value=python, problem=f"cannot be run ({error.strerror})"
        ) from None
    except subprocess.TimeoutExpired:
        raise _not_imported(python, f"it takes over {IMPORT_S:.0f} s") from None
    if done.returncode:
        raise _not_imported(python, last_error(done.stderr) or f"it {ended(done.returncode)}")
    answer = ANSWER.search(done.stdout)
    if answer is None:
        raise _not_imported(python, "it answers no release")
    if answer["has_gpu"] != "True":
        raise InputError(
            key="--python", value=python, problem=f"has vLLM {answer['release']}, but {NO_GPU}"
        )
    return answer["release"]


def _not_imported(python: str, reason: str) -> InputError:
    return InputError(
        key="--python",
        value=python,
        problem=f"cannot import vLLM: {reason}",
        remedy="pip install vllm, or give the Python of its environment",
    )


def ended(code: int) -> str:
    """The end of a process, by its exit code or, below 0, the signal."""
    return f"was ended by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def run_plan(python: str, plan: Mapping[str, Any], folder: Path, limit_s: float) -> None:
    """Let a vLLM carry out a plan as in_vllm/drive.py reads it; prints how far it is.

    Its output goes to vllm.log in the folder. Raises InputError if it fails, or does not end
    within limit_s seconds.
    """
    plan_file = folder / "plan.json"
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    words = [python, str(IN_VLLM / "drive.py"), str(plan_file), str(folder)]
    log = folder / LOG
    with log.open("wb") as output, log.open(encoding="utf-8", errors="replace") as printed:
        process = subprocess.Popen(
            words,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,
        )
        try:
            code = _followed(process, printed, limit_s)
        finally:
            _stop(process)
    if code is None:
        raise InputError(
            key="vLLM",
            problem=f"did not end within {limit_s:.0f} s",
            remedy=f"all of its output: {log}",
        )
    if code:
        reason = last_error(log.read_text(encoding="utf-8", errors="replace")) or ended(code)
        raise InputError(key="vLLM", problem=reason, remedy=f"all of it: {log}")


def _environment() -> dict[str, str]:
    """With the modules that vLLM loads by name, and nothing downloaded."""
    known = [str(IN_VLLM), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**QUIET, **os.environ, "PYTHONPATH": os.pathsep.join(known)}


def _followed(process: "subprocess.Popen[bytes]", printed: IO[str], limit_s: float) -> int | None:
    """The exit code, None if it is out of time; prints its progress meanwhile.

    The output is read as a file: a child may hold it open when the process has ended.
    """
    ends, code = time.monotonic() + limit_s, None
    while code is None and time.monotonic() < ends:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(LOOKS_S)
        for line in _whole_lines(printed):
            if line.startswith(STATUS_PREFIX):
                print(line.removeprefix(STATUS_PREFIX), end="", flush=True)
    return code


def _whole_lines(printed: IO[str]) -> Iterator[str]:
    """The lines that were added since the last look, but one that is being written."""
    start = printed.tell()
    while (line := printed.readline()).endswith("\n"):
        yield line
        start = printed.tell()
    printed.seek(start)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End vLLM and the processes that it has started, which may outlive it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGKILL)
    process.wait()


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
