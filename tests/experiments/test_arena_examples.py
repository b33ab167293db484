"""The examples of searches: parameters by Optuna, and orders that a program writes."""

from dataclasses import replace

import pytest
import score_written

from testbed.experiments.arena.suites import HARD, SUITES, Case

TEXT = "from testbed.memory.prefix_cache.eviction.lru import Lru\nclass Written(Lru): pass\n"
SCAN = Case("scan", (f"trace={HARD}Scan",), num_requests=40)
SMALL = replace(SUITES["sprint"], name="small", cases=(SCAN,), seeds=(0,))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The suite of the examples with one short workload."""
    monkeypatch.setitem(SUITES, SMALL.name, SMALL)
    monkeypatch.setattr(score_written, "SUITE", SMALL.name)


def test_a_written_order_is_scored_beside_lru(tmp_path):
    assert score_written.score_of(TEXT, tmp_path) == pytest.approx(100)


@pytest.mark.parametrize("text", ["class Written: pass", "Written = 1 / 0", "class", "x = 1"])
def test_a_text_that_is_no_order_is_the_worst(tmp_path, text):
    assert score_written.score_of(text, tmp_path) == float("inf")


def test_the_best_of_several_is_named(capsys):
    score, rank = score_written.best(["-node.depth", "node.no_such_number"])
    assert rank == "-node.depth"
    assert score < float("inf")
    assert "node.no_such_number" in capsys.readouterr().out


def test_two_parameters_are_tuned(monkeypatch):
    pytest.importorskip("optuna", reason="optuna is not installed")
    import tune_order

    monkeypatch.setattr(tune_order, "SUITE", SMALL.name)
    study = tune_order.tune(3)
    assert len(study.trials) == 3
    assert study.best_value <= study.trials[0].value
