"""On a GPU: kernels and the ladder's steps against their references, on both libraries' arrays,
under graph capture.
"""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

from verify_draws import check_draws  # noqa: E402

from testbed.kernels.ladder import measure as ladder  # noqa: E402
from testbed.kernels.launch.attention import decode  # noqa: E402
from testbed.kernels.verify.reference import Shape, random_batch  # noqa: E402
from testbed.kernels.verify.verify_attention import (  # noqa: E402
    SMALL_CASES,
    TOLERANCE,
    Case,
    cases,
    check_forms,
)
from testbed.kernels.verify.verify_moves import MOVE_CHECKS  # noqa: E402


@pytest.mark.parametrize("case", [*SMALL_CASES, *list(cases())[:110:9]], ids=str)
def test_attention_equals_its_reference(case: Case) -> None:
    for name, error in check_forms(case).items():
        assert error <= TOLERANCE[case.shape.dtype], name


@pytest.mark.parametrize("name", MOVE_CHECKS)
def test_block_copies_and_swaps_are_exact(name: str) -> None:
    assert all(MOVE_CHECKS[name](np.random.default_rng(seed)) for seed in range(10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [5, 1000, 128256])
def test_draws_are_those_of_the_distribution(vocab_size: int, dtype: torch.dtype) -> None:
    assert all(check_draws(np.random.default_rng(seed), vocab_size, dtype) for seed in range(5))


def test_cupy_streams_and_graphs_give_equal_results() -> None:
    batch = random_batch(np.random.default_rng(0), Shape(8, 2, 128), [5, 700, 64])
    inputs = (batch.q, batch.k_cache, batch.v_cache, batch.block_tables, batch.context_lens)
    expected, output = torch.empty_like(batch.q), torch.zeros_like(batch.q)
    decode(expected, *inputs, max_context_len=700)
    decode(*(cupy.asarray(x) for x in (output, *inputs)), max_context_len=700)
    cupy.cuda.get_current_stream().synchronize()
    assert torch.equal(output, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode(output, *inputs, max_context_len=700)
    for _ in range(3):
        output.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(output, expected)


@pytest.mark.parametrize("case", ladder.CASES, ids=str)
def test_every_ladder_step_equals_the_reference(case: ladder.Case) -> None:
    errors = ladder.check(case)
    assert all(error <= TOLERANCE[case.shape.dtype] for error in errors.values()), errors
