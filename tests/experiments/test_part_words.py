"""The parts of a run, and its progress, in the words of a screen."""

import pytest

from testbed.experiments.runs.part_words import name_words, part_words
from testbed.experiments.runs.progress import left


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Paged(block_size=16, watermark=0.01)", "paged (block_size 16, watermark 0.01)"),
        ("MixedPrefill(n=1), LRU()", "mixed prefill (n 1), lru"),
        ("Tiered(eviction=CostAware(x=1), size=2)", "tiered (eviction cost aware (x 1), size 2)"),
        ("Csv(path=a.csv, input_column=prompts, output_column=answers)", "csv (path a.csv)"),
        ("Whole(bandwidth=50000000000.0, n=1)", "whole (bandwidth 50 GB/s, n 1)"),
        ("Normal(mean=5, stdev=None)", "normal (mean 5)"),
        ("2 behind RoundRobin(); engine 1 at 5 s", "2 behind round robin; engine 1 at 5 s"),
    ],
)
def test_parts_are_named_in_words(text, words):
    assert part_words(text) == words


def test_numbers_in_names_are_kept():
    assert [name_words(name) for name in ("ContiguousPow2", "VllmV1Async", "auto_cost")] == [
        "contiguous pow2",
        "vllm v1 async",
        "auto cost",
    ]


def test_progress_says_how_long_the_rest_takes():
    assert left(5, 20, 10.0) == ", about 30 s left"
    assert left(0, 20, 10.0) == ""
