"""A point is complete only with every key that this version writes."""

import json

import pytest
from tiny_run import tiny_run

from experiments.runs.point import complete


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("tiny") / "run")


def test_a_summary_with_all_keys_is(folder):
    assert complete(folder)["requests"]["finished"] == 7


@pytest.mark.parametrize("key", ["requests", "stopped_at_latency", "cost_profile"])
def test_a_summary_without_one_is_not(folder, tmp_path, key):
    summary = complete(folder)
    del summary[key]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert complete(tmp_path) is None
