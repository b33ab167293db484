"""`testbed bench`: its settings, the fastest of several runs in new processes, a row of each."""

import contextlib
import re
import time
from itertools import chain
from random import Random
from types import SimpleNamespace

import pytest

from testbed.experiments.cli.main import call
from testbed.experiments.runs import simulator_speed as speed


def test_long_runs_are_measured_once_and_the_others_as_often_as_asked():
    repeats = {name: times for name, _, times in speed.settings(5000, 3)}
    assert repeats.pop("1 req/s, an hour, step by step") == 1
    assert repeats.pop("1 req/s, 5,000 requests") == 1
    assert set(repeats.values()) == {3}


def test_branching_prompts_share_beginnings_and_end_in_ids_of_their_own():
    prompts = list(speed.branching(4, 3, Random(1)))
    own = [[token for token in prompt if token < 0] for prompt in prompts]
    assert all(own)
    assert len(set(chain.from_iterable(own))) == sum(map(len, own))
    for prompt in prompts:
        shared = [token for token in prompt if token >= 0]
        assert shared == list(range(shared[0], shared[0] + len(shared)))
        assert shared[0] % 100 == 0  # the first id of one of the trees


def test_speed_of_a_cache_counts_its_lookups_and_evictions(monkeypatch):
    clock = iter([1.5, 4.0])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    measured = speed.cache_speed(100, 40)
    assert measured.seconds == 2.5
    assert measured.operations > 40


def test_speed_of_a_run_counts_its_requests(monkeypatch, tmp_path):
    monkeypatch.setattr(speed, "SYSTEM", (*speed.SYSTEM, "arrivals.duration_s=5"))
    measured = speed.run_speed(("arrivals.rate=2",), ())
    assert measured.operations == 9
    assert measured.seconds > 0
    assert 1 < measured.batch < 9
    assert 0.01 < measured.peak_gb < 100


def test_fastest_of_several_runs_counts(monkeypatch):
    seconds = iter([3.0, 1.0, 2.0])
    pool = SimpleNamespace(apply=lambda work, arguments: work(*arguments))
    context = SimpleNamespace(Pool=lambda number: contextlib.nullcontext(pool))
    monkeypatch.setattr(speed, "get_context", lambda kind: context)
    measured = speed.fastest("it", lambda: speed.Speed(1500, next(seconds)), (), 3)
    assert measured == speed.Speed(1500, 1.0)


def test_table_has_a_row_for_each_setting_with_operations_a_second(monkeypatch, capsys):
    monkeypatch.setattr(speed, "fastest", lambda *_: speed.Speed(12345, 4.5, 3.14159, 1.005))
    call("bench", ["--requests", "1000", "--repeats", "4"])
    _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == len(speed.settings(1000, 4)) + len(speed.CACHE_SIZES)
    for row in rows:
        count, seconds, a_second, batch, _ = re.findall(r"[\d,.]+", row)[-5:]
        assert (count, seconds, batch) == ("12,345", "4.500", "3.1")
        assert float(a_second.replace(",", "")) == pytest.approx(12345 / 4.5, abs=1)
