"""Random batches for a profile: drawn beside its points, and served as they were drawn."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

import tiny_models as tiny
from tiny import OneSecond

from testbed.cost.profile import read_profile
from testbed.kernels.engine.loaded_model import Bench
from testbed.kernels.engine.served_run import Options
from testbed.kernels.engine.verify.against_profile import (
    MAX_STORED,
    Batch,
    compare,
    drawn,
    taken,
)


def test_batches_have_no_number_of_sequences_of_the_profile():
    excluded = taken(read_profile("h200-opt-13b-tp1"))
    assert {1, 8, 64} <= excluded
    batches = drawn(100, excluded, 2048, np.random.default_rng(0))
    sizes = {len(batch.prompt_lens) for batch in batches}
    assert len(sizes) > 20
    assert not sizes & excluded
    assert all(sum(batch.prompt_lens) < 2 * MAX_STORED for batch in batches)


def test_each_batch_is_compared_while_all_of_it_decodes():
    arch = tiny.architecture("llama")
    bench = Bench(arch, tiny.weights(arch), Options())
    rows = compare(bench, [Batch((5, 9, 12)), Batch((7, 20))], OneSecond())
    decodes = [row for row in rows if not row.prompt_tokens]
    assert [(row.batch, row.decode_seqs) for row in decodes] == [(0, 3), (1, 2)]
    assert sum(row.prompt_tokens for row in rows) == 5 + 9 + 12 + 7 + 20
    assert {row.predicted_us for row in rows} == {1e6}
    assert decodes[1].decode_context > 7 + 20 + 2 * 4
    assert all(0 < row.measured_us < 1e6 for row in rows)
