"""Calls in a process of their own, with limits of time and memory: what a plug-in raises, hangs or
takes costs its own row.
"""

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from testbed.core.errors import AnswerIsNo, InputError
from testbed.experiments.runs.error_lines import one_line

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["testbed.experiments.arena.preloaded"])
GIB = 1 << 30
MEMORY_GIB = 4  # address space beyond what the modules take
STOPPED_AFTER_S = 5.0  # between the signal that asks a process to end and the one that ends it


@dataclass(frozen=True)
class Failure:
    """The reason for a missing answer, in one line."""

    reason: str


class WrongInput(Failure):
    """A call that refused its arguments."""


class Unanswered(Failure):
    """A call that took longer than its limit."""


def isolated(call: Callable[..., Any], *arguments: Any, limit_s: float) -> Any:
    """The answer of the call in another process, or a Failure. The call, its arguments and its
    answer must pickle.
    """
    ours, theirs = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_answer, args=(theirs, os.getcwd(), call, arguments))
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            return Unanswered(f"no answer within {limit_s:g} s")
        return ours.recv()
    except EOFError:
        process.join(STOPPED_AFTER_S)
        return Failure(f"the process ended with code {process.exitcode}")
    finally:
        ours.close()
        _end(process)


def _end(process: Any) -> None:
    process.join(0.1)
    for stop in (process.terminate, process.kill):
        if process.is_alive():
            stop()
            process.join(STOPPED_AFTER_S)


def _answer(
    connection: Connection, folder: str, call: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Send the answer of the call, or a Failure."""
    os.chdir(folder)
    sys.path.append(folder)
    limit = MEMORY_GIB * GIB + _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    try:
        answer = call(*arguments)
    except MemoryError:
        answer = Failure(f"takes more than {MEMORY_GIB} GiB of memory")
    except AnswerIsNo as error:
        answer = Failure(one_line(error))
    except InputError as error:
        answer = WrongInput(one_line(error))
    except (Exception, SystemExit) as error:
        answer = Failure(one_line(error))
    connection.send(answer)
    connection.close()


def _address_space() -> int:
    """Bytes of address space that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
