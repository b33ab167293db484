"""What needs no GPU of the GPU's side: graph buckets, layouts, copies that may be one launch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402
from refusals import refuses  # noqa: E402

from testbed.core.errors import PlugInError  # noqa: E402
from testbed.core.slots import Copy, Extent  # noqa: E402
from testbed.kernels.engine.graphs import BUCKETS, bucket, context_bucket  # noqa: E402
from testbed.kernels.engine.layout import Blocks, Extents  # noqa: E402
from testbed.kernels.engine.pool_moves import independent, whole  # noqa: E402


def test_graph_bucket_is_at_least_the_batch_size():
    assert [bucket(n) for n in (1, 3, 8, 33, 256)] == [1, 4, 8, 40, 256]
    assert all(bucket(n) >= n for n in range(1, BUCKETS[-1] + 1))
    assert [context_bucket(n, 1000) for n in (1, 256, 257, 600, 1000)] == [256, 256, 512, 1000, 1000]
    assert context_bucket(50, 100) == 100


def test_block_and_extent_layouts_map_slots_alike():
    blocks, extents = Blocks(2, 4), Extents(2)
    place = blocks.place([Extent(8, 4), Extent(0, 8)], "x")
    assert blocks.slots(place, np.arange(12)).tolist() == [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]
    assert blocks.rows(place, np.array([9])).tolist() == [[17, 21]]
    place = extents.place([Extent(10, 5)], "x")
    assert extents.rows(place, np.array([12])).tolist() == [[22, 27]]


def test_unreadable_tables_are_refused():
    refuses("partial blocks of 4 slots", lambda: Blocks(2, 4).place([Extent(2, 4)], "sequence 7"), error=PlugInError)
    with pytest.raises(PlugInError, match="one extent per sequence"):
        Extents(2).place([Extent(0, 4), Extent(8, 4)], "sequence 7")


def test_dependent_copies_are_separate_launches():
    first, second, third = Copy(0, 4, 4), Copy(8, 12, 4), Copy(4, 16, 4)
    assert independent((first, second, third)) == [[first, second], [third]]
    assert whole((Copy(0, 4, 3),), 4) == (Copy(0, 4, 4),)


def test_warm_up_changes_no_slots_or_outputs():
    """It writes no slot, keeps no sequence, and the run after it says what it would have said."""
    plain, warm = tiny.engine(), tiny.engine(warm=(5, 300))
    assert not warm.runner.token_buffers.tokens
    requests = tiny.requests([(30, 9), (7, 20), (50, 5)])
    assert warm.serve(requests).outputs == plain.serve(requests).outputs
    assert torch.equal(warm.runner.moves.pools.device.isnan(), plain.runner.moves.pools.device.isnan())
