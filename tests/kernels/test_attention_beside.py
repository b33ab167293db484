"""The comparisons of `testbed gpu measure attention-beside`, and its rule that results agree."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from refusals import refuses  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.kernels.measure.attention_beside import KINDS, difference, rows  # noqa: E402


def test_shapes_are_those_that_were_announced():
    assert {kind: len(set(cases)) for kind, cases in KINDS.items()} == {
        "prefill": 14,
        "decode": 48,
        "shared": 12,
    }
    assert all(case.prefix % case.shape.block_size == 0 for case in KINDS["shared"])


def test_results_by_sequence_and_head_are_compared_token_by_token():
    tokens, heads, size = 6, 4, 8
    ours = torch.randn(2 * tokens, heads, size)
    theirs = ours.view(2, tokens, heads, size).transpose(1, 2)
    assert difference(ours, theirs) == 0
    changed = theirs.clone()
    changed[1, 2, 3] *= 1.5
    part = ours[tokens + 3, 2].norm() / ours.norm()
    assert difference(ours, changed) == pytest.approx(float(part) / 2, rel=1e-2)


def test_decode_without_flashinfer_is_refused():
    try:
        import flashinfer  # noqa: F401
    except ImportError:
        refuses("install flashinfer-python", list, rows(["decode"]), error=InputError)
