"""On a GPU: every step of the ladder against the reference, and the engine's tokens through it."""

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
pytest.importorskip("cupy", reason="CuPy is not installed")

from kernels.ladder.check import CASES, Case, check, writes_exactly  # noqa: E402
from kernels.ladder.tokens import compare_all  # noqa: E402
from kernels.verify.verify_attention import TOLERANCE  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_step_equals_the_reference(case: Case) -> None:
    for name, error in check(case).items():
        assert error <= TOLERANCE[case.shape.dtype], name
    assert writes_exactly(case)


def test_the_engine_says_the_same_through_every_step() -> None:
    assert all(row["right"] for row in compare_all())
