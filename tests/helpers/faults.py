"""System calls on files that fail at the n-th call, as on a full disk or in a folder that may not
be written.
"""

import builtins
import errno
import io
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

KINDS = ("open", "write", "rename", "fsync", "mkdir")
ERRORS = (errno.ENOSPC, errno.EACCES, errno.EIO)
REFUSED, ANSWERED = "one line", "the answer"


class Outcomes:
    """The outcomes of a command's faults, by kind."""

    def __init__(self, command):
        self._command, self._counts = command, Counter()

    def add(self, kind, outcome):
        self._counts[kind, outcome] += 1

    def show(self, broken=()):
        """Print a row for each kind and outcome, and the faults with another one."""
        for (kind, outcome), count in sorted(self._counts.items()):
            print(f"{self._command:10} {kind:6} {outcome:10} {count:3}")
        print(f"{self._command:10} {self._counts.total() + len(broken)} faults", *broken, sep="\n")


class Faults:
    """Counts the calls of each kind on files below a folder. Those of one kind fail from the n-th
    on, or at the n-th alone. kind None: none fails.
    """

    def __init__(self, folder, kind=None, position=0, *, lasts=False, error=errno.ENOSPC):
        self.folder = os.path.realpath(folder)
        self.kind, self.position, self.lasts, self.error = kind, position, lasts, error
        self.counts = Counter()

    def meet(self, kind, path=None):
        """A call is made; it may fail."""
        if not self._is_below(path):
            return
        number = self.counts[kind]
        self.counts[kind] += 1
        is_due = number >= self.position if self.lasts else number == self.position
        if kind == self.kind and is_due:
            raise OSError(self.error, os.strerror(self.error), None if path is None else str(path))

    def _is_below(self, path):
        if isinstance(path, int):  # a descriptor
            return False
        return path is None or os.path.realpath(os.fspath(path)).startswith(self.folder)


class Written:
    """A file that is open for writing, whose `write` may fail."""

    def __init__(self, file, faults):
        self._file, self._faults = file, faults

    def write(self, content):
        self._faults.meet("write")
        return self._file.write(content)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *how):
        return self._file.__exit__(*how)

    def __iter__(self):
        return iter(self._file)


@contextmanager
def injected(faults):
    """The calls of this process meet the faults."""
    open_, os_calls = io.open, {name: getattr(os, name) for name in ("rename", "replace", "mkdir")}
    open_descriptor, fsync = os.open, os.fsync

    def opened(file, mode="r", *arguments, **options):
        faults.meet("open", file)
        opened = open_(file, mode, *arguments, **options)
        writes = not isinstance(file, int) and set("wax+") & set(mode) and faults._is_below(file)
        return Written(opened, faults) if writes else opened

    def descriptor(path, *arguments, **options):
        faults.meet("open", path)
        return open_descriptor(path, *arguments, **options)

    def synced(number):
        faults.meet("fsync")
        fsync(number)

    def met(name, kind):
        def call(path, *arguments, **options):
            faults.meet(kind, path)
            return os_calls[name](path, *arguments, **options)

        return call

    renamed = {name: met(name, "rename") for name in ("rename", "replace")}
    with (
        mock.patch.multiple(
            os, open=descriptor, fsync=synced, mkdir=met("mkdir", "mkdir"), **renamed
        ),
        mock.patch.object(builtins, "open", opened),
        mock.patch.object(io, "open", opened),
    ):
        yield faults


def contents(folder):
    """The bytes of every file below a folder, by its path there; without bytecode."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
