"""Logs whose file fails at the n-th call: that of a server, and that of a client of one."""

import json
from itertools import count

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason=f"serving needs {package}")

from faults import ANSWERED, KINDS, REFUSED, Faults, Outcomes, contents, injected  # noqa: E402
from served import running  # noqa: E402
from wrong_files import check_one_line  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.experiments.cli.main import main  # noqa: E402
from testbed.serving.request_log import RequestLog  # noqa: E402

NUM_REQUESTS = 5
FILES = {f"log/{name}" for name in ("requests.csv", "meta.json", "workload.jsonl")}
PART = 7  # bytes of a line that a full disk takes
LOAD = (
    "trace=random",
    "trace.input_len=16",
    "trace.output_len=2",
    "arrivals.duration_s=0.3",
    "arrivals.rate=20",
)


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


@pytest.fixture
def record(tmp_path, capfd):
    """Record a log with a fault in a new folder: the code, the errors, the folder, the calls."""
    places = count()
    with running(speed=1.0) as server:

        def call(kind, position):
            folder = tmp_path / f"place{next(places)}"
            folder.mkdir()
            faults = Faults(folder, kind, position)
            words = ("gpu", "record", "--url", server.url, *LOAD, "--out", str(folder / "log"))
            with injected(faults):
                code = main(words)
            return code, capfd.readouterr().err, folder, faults.count

        yield call


def check_whole_or_nothing(record, kind, position):
    """One line and nothing left; or the whole log, if the call is made again."""
    code, errors, folder, _ = record(kind, position)
    if code:
        check_one_line(code, errors)
    assert set(contents(folder)) == (set() if code else FILES)
    return code


def test_a_recorded_log_is_whole_or_not_there(record):
    assert set(contents(record("none", None)[2])) == FILES
    last = record("write", None)[-1] - 1
    assert check_whole_or_nothing(record, "write", last) != 0
    check_whole_or_nothing(record, "rename", 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_whichever_call_on_a_recorded_log_fails_it_is_whole_or_not_there(record, kind):
    outcomes = Outcomes("gpu record")
    for position in range(record(kind, None)[-1]):
        code = check_whole_or_nothing(record, kind, position)
        outcomes.add(kind, REFUSED if code else ANSWERED)
    outcomes.show()
