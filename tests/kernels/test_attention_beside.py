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


def test_results_differ_by_their_norms():
    result = torch.ones(4, 2, 8, dtype=torch.float16)
    changed = result.clone()
    changed[1] *= 1.5
    assert difference(result, result) == 0
    assert difference(changed, result) == pytest.approx(0.5 * (1 / 4) ** 0.5, rel=1e-3)


def test_decode_without_flashinfer_is_refused():
    try:
        import flashinfer  # noqa: F401
    except ImportError:
        refuses("install flashinfer-python", list, rows(["decode"]), error=InputError)
