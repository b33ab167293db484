"""On a GPU: every step of the ladder against the reference."""

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
pytest.importorskip("cupy", reason="CuPy is not installed")

from testbed.kernels.ladder.measure import CASES, Case, check  # noqa: E402
from testbed.kernels.verify.verify_attention import TOLERANCE  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_ladder_step_equals_the_reference(case: Case) -> None:
    found = check(case)
    assert all(error <= TOLERANCE[case.shape.dtype] for error in found.values()), found
