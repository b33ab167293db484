"""Logs of a server whose file fails at the n-th call."""

import json

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason=f"serving needs {package}")

from faults import Faults, injected  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.serving.request_log import RequestLog  # noqa: E402

NUM_REQUESTS = 5
PART = 7  # bytes of a line that a full disk takes


class FullDisk:
    """A file that takes a part of the line that passes its size, and then nothing."""

    def __init__(self, file, num_bytes, *, truncates=True):
        self._file, self._left, self._truncates = file, num_bytes, truncates

    def write(self, line):
        if self._left <= 0:
            raise OSError(28, "No space left on device")
        taken = self._file.write(bytes(line)[: self._left])
        self._left -= taken
        return taken

    def truncate(self, size):
        if not self._truncates:
            raise OSError(5, "Input/output error")
        self._file.truncate(size)

    def close(self):
        self._file.close()


def write_all(log):
    for number in range(NUM_REQUESTS):
        log.write(number, 1, 0, 1, 2)
    log.close()


def test_a_full_disk_leaves_whole_lines_and_is_the_failure(tmp_path):
    """Wherever in the log its space ends."""
    whole = tmp_path / "whole.jsonl"
    write_all(RequestLog(whole))
    size = whole.stat().st_size
    for left in range(0, size, PART):
        path = tmp_path / f"{left}.jsonl"
        log, calls = RequestLog(path), []
        log.on_failure = lambda calls=calls: calls.append("ended")
        log._file = FullDisk(log._file, left)
        write_all(log)
        assert whole.read_bytes().startswith(path.read_bytes())
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(rows) == whole.read_bytes()[:left].count(b"\n")
        assert isinstance(log.failure, InputError)
        assert calls == ["ended"]


def test_a_disk_that_does_not_truncate_either_is_the_failure_too(tmp_path):
    log = RequestLog(tmp_path / "log.jsonl")
    log._file = FullDisk(log._file, PART, truncates=False)
    write_all(log)
    assert isinstance(log.failure, InputError)


def test_a_log_that_cannot_be_made_is_refused(tmp_path):
    with injected(Faults(tmp_path, "open", 0)), pytest.raises(InputError):
        RequestLog(tmp_path / "log.jsonl")
