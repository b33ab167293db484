"""Which decodes of a batch have their first tokens read once."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from testbed.kernels.engine import graphs  # noqa: E402
from testbed.kernels.engine.graphs import DecodeGraphs  # noqa: E402
from testbed.kernels.engine.shared_runs import NO_RUN, Run, shared_run  # noqa: E402
from testbed.kernels.engine.sizes import BUCKETS  # noqa: E402


def run_of(*tables, lens, block_size=16):
    """The run of these tables, padded with zeros as a launch has them."""
    width = max(map(len, tables))
    rows = [[*table, *[0] * (width - len(table))] for table in tables]
    return shared_run(np.array(rows, np.int32), np.array(lens), block_size)


def test_neighbours_that_begin_alike_are_a_run():
    run = run_of([7, 8, 1], [7, 8, 2], [7, 8, 3], [4, 8, 5], lens=[40, 41, 42, 43])
    assert run == Run(first=0, last=3, tokens=32)
    assert run.repeated == 64


def test_the_run_that_saves_most_is_taken():
    """Three that share a block repeat two; the first two share three blocks, and repeat three."""
    assert run_of([5, 6, 7, 1], [5, 6, 7, 2], [5, 9, 9, 3], lens=[60] * 3) == Run(0, 2, 48)
    assert run_of([5, 6, 1], [5, 6, 2], [5, 9, 3], [5, 8, 4], lens=[40] * 4) == Run(0, 4, 16)


def test_the_newest_token_is_not_shared():
    """A block that two contexts end in together is written by both."""
    assert run_of([7, 8], [7, 8], lens=[32, 32]) == Run(0, 2, 16)
    assert run_of([7, 8], [7, 8], lens=[33, 33]) == Run(0, 2, 32)


def test_padding_is_not_shared():
    assert run_of([1], [2], [0, 0, 3], lens=[1, 1, 48]) == NO_RUN
    assert run_of([0], [0], lens=[1, 0]) == NO_RUN


def test_small_blocks_are_shared_by_whole_tiles():
    same = list(range(9))
    assert run_of([*same, 20], [*same, 21], lens=[40, 40], block_size=4) == Run(0, 2, 32)
    assert run_of([1, 2, 3], [1, 2, 4], lens=[12, 12], block_size=4) == NO_RUN


def test_one_decode_is_no_run():
    assert run_of([1, 2], lens=[30]) == NO_RUN


@pytest.mark.parametrize("max_len", [300, 8192])
def test_graphs_of_runs_are_captured_before_they_are_served(monkeypatch, max_len):
    """One a batch size, for contexts of any length."""
    captured = []
    monkeypatch.setattr(graphs, "Captured", lambda *parts: captured.append(parts[2:5]))
    attention = SimpleNamespace(may_share=lambda num, longest: (num - 1) * longest >= 16384)
    weights = SimpleNamespace(embedding=torch.zeros(1))
    network = SimpleNamespace(arch=SimpleNamespace(spec=SimpleNamespace(vocab_size=8)))
    network.weights = weights
    engine = DecodeGraphs(network, attention, max_len, None, None, None)
    engine.capture(256, max_len)
    before = list(captured)
    sharing = [(num, longest) for num, longest, shares in before if shares]
    assert 0 < len(sharing) < len(BUCKETS)
    assert {longest for _, longest in sharing} == {max_len}
    for num in range(2, 257):
        for longest in range(100, max_len + 1, 100):
            if attention.may_share(num, longest):
                engine.captured(num, longest, shares=True)
    assert captured == before
