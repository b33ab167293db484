"""Options of the whole suite, and golden rows."""

import csv
import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# An example may take long on a machine that is busy, which says nothing of the code. Every run has
# the same examples, so that a change is refused for what it changed; `--hypothesis-profile=explore`
# draws others, and five times as many.
ANY_LOAD = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", max_examples=100, **ANY_LOAD)
settings.register_profile("same examples", max_examples=20, derandomize=True, **ANY_LOAD)
settings.load_profile("same examples")
GOLDEN = Path(__file__).with_name("golden")

# Images of containers often forbid compiled files: each worker, and each process that a test
# starts, would compile the sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/golden/*.csv from this run (-n 0)",
    )


# With Python's usual threshold of 700 objects, collections of garbage take a fifth of importing the
# tests, and a sixth of running them.
gc.set_threshold(50_000, 20, 100)


def pytest_collection_finish():
    """Leave what collection built (modules, tests) out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    """Leave what the tests have built out of the last collection, which takes seconds: a worker
    that has not ended five seconds after its last test is interrupted.
    """
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_waits_for_the_disk():
    """Files of tests need not survive a loss of power; to wait for that takes 10 ms a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture
def few_requests(monkeypatch):
    """Shorten the runs of `testbed.check` from 24 requests, and its search for the fewest of those
    that break a clause from 60 tries.
    """
    monkeypatch.setattr("testbed.checks.fast_and_slow.NUM_REQUESTS", 16)
    monkeypatch.setattr("testbed.checks.fast_and_slow.MAX_TRIES", 12)


@pytest.fixture
def golden(request):
    """Asserts that the row of a case in a file of tests/golden is this one, or writes it there."""

    def check(file, case, row):
        with (GOLDEN / file).open(newline="") as lines:
            rows = {record["case"]: record for record in csv.DictReader(lines)}
        actual = {"case": case, **{name: str(value) for name, value in row.items()}}
        if request.config.getoption("--update-golden"):
            rows[case] = actual
            with (GOLDEN / file).open("w", newline="") as lines:
                writer = csv.DictWriter(lines, actual)
                writer.writeheader()
                writer.writerows(rows.values())
        assert rows.get(case) == actual

    return check
