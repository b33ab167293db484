"""Kernels against their references without a GPU: their sources run on the CPU, in random
schedules, with the checks of `testbed gpu verify`.
"""

import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import emulated_gpu
import torch
import verify_draws
from emulated_gpu import COMPILER, NUM_SMS, EmulatedKernel, EmulatedLaunch, LaunchFailed, translated
from verify_draws import check_draws

from testbed.core.specs import ModelSpec
from testbed.kernels.engine import cuda_attention
from testbed.kernels.engine.cuda_attention import CudaAttention
from testbed.kernels.engine.layout import Blocks, Place, Pools
from testbed.kernels.engine.network import PlainAttention
from testbed.kernels.engine.ragged import Ragged
from testbed.kernels.engine.token_buffers import Part
from testbed.kernels.launch import attention, cache_ops, launch, prefill_attention, sampling
from testbed.kernels.launch.decode_plan import DecodePlan
from testbed.kernels.verify import reference, verify_attention, verify_moves
from testbed.kernels.verify.reference import PLAIN, Shape
from testbed.kernels.verify.verify_attention import (
    SMALL_CASES,
    TOLERANCE,
    Case,
    cases,
    check_decode,
    check_forms,
    check_prefill,
    check_shared,
    layouts,
)
from testbed.kernels.verify.verify_moves import (
    check_copy,
    check_swap,
    check_unload,
    check_write,
)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

OF_BLOCKS = Case(
    shape=Shape(4, 2, 64, 16, torch.float16), seed=1, plan=SMALL_CASES[0].plan, longest=200
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def gpu(monkeypatch, libraries):
    """Wrappers launch on an emulated Hopper, for which host memory is GPU memory."""
    runtime = SimpleNamespace(getDevice=lambda: 0)
    counters = np.zeros(2, np.int32)
    replacements = {
        "load": lambda source, name, **defines: EmulatedKernel(libraries, source, name, defines),
        "Launch": EmulatedLaunch,
        "require_gpu": lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)),
        "multiprocessors": lambda: NUM_SMS,
        "compute_capability": lambda: 90,
        "stream_pointer": lambda array: 0,
        "counters": lambda device: (counters, iter([counters.ctypes.data])),
        "rows_of_memory": emulated_gpu.rows_of_memory,
    }
    modules = attention, cache_ops, launch, prefill_attention, sampling, verify_attention
    for module in (*modules, cuda_attention):
        for name in replacements.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, replacements[name])
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for module in (reference, verify_draws, verify_moves):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(verify_attention, "layouts", aligned_layouts)
    # A GPU's allocator gives a workspace without a holder to later work of its stream only.
    monkeypatch.setattr(attention, "workspace_of_rows", cache(attention.workspace_of_rows))


def aligned_layouts(*batch):
    """K cache, V cache and places, where a GPU's allocator would put them."""
    return {
        name: (*aligned(torch.stack(caches)), places)
        for name, (*caches, places) in layouts(*batch).items()
    }


def aligned(array):
    """A copy that begins at a multiple of 512 bytes."""
    room = torch.empty(array.nbytes + 512, dtype=torch.uint8)
    first = -room.data_ptr() % 512
    return room[first : first + array.nbytes].view(array.dtype).view(array.shape).copy_(array)


def assert_right(errors, case):
    wrong = {name: error for name, error in errors.items() if error > TOLERANCE[case.shape.dtype]}
    assert errors
    assert not wrong


def test_attention_kernels_equal_their_reference(gpu):
    assert_right(check_decode(OF_BLOCKS, PLAIN) | check_prefill(OF_BLOCKS, PLAIN), OF_BLOCKS)


def test_decodes_that_share_a_prefix_equal_their_reference(gpu):
    """Thread blocks with equal shares merge what they read with what was read for all."""
    plan = DecodePlan(4, 3, 64, shares=True)
    for seed in range(3):
        case = Case(OF_BLOCKS.shape, seed, plan, 400)
        assert_right(check_shared(case), case)


SHARED = [1, 2, 3, 4, 5]  # blocks of 16 tokens
# (new tokens, tokens before them, block ids) of prompts, one behind the shared tokens, and decodes
PROMPTS = [(9, 80, [*SHARED, 6]), (20, 0, [7, 8])]
DECODES = [(1, 84, [*SHARED, 9]), (1, 33, [10, 11, 12]), (1, 80, [*SHARED, 13])]
DECODES += [(1, 99, [*SHARED, 14, 15]), (1, 111, [*SHARED, 16, 17])]


def batch_of(prompts, decodes):
    """The arrays that attention reads of an iteration with these parts."""
    rows = [*prompts, *decodes]
    parts = [Part(None, new, past, past, wanted=1) for new, past, _ in rows]
    positions = np.concatenate([np.arange(past, past + new) for new, past, _ in rows])
    places = [Place(np.array([ids]), len(ids) * 16) for *_, ids in rows]
    return Ragged(parts, len(prompts), positions * 0, positions, np.arange(len(rows)), places)


@pytest.mark.parametrize("prompts", [PROMPTS, []], ids=["beside prompts", "decodes alone"])
def test_decodes_of_an_iteration_share_a_prefix_as_the_plain_path_reads_it(
    gpu, monkeypatch, prompts
):
    generator, batch = torch.Generator().manual_seed(0), batch_of(prompts, DECODES)

    def values(*shape):
        return aligned(torch.randn(shape, generator=generator).half())

    spec, layout, cache = ModelSpec("x", 1, 256, 4, 2, 64, 64, 2, 8, 512), Blocks(2, 16), [2, 18]
    kernels, plain = (
        kind(Pools(pool, {}, spec), layout, (None,))
        for pool in [values(*cache[:1], cache[1] * 16 * 2 * 64)]
        for kind, pool in ((CudaAttention, pool), (PlainAttention, pool.clone()))
    )
    q, k, v = (values(len(batch.positions), heads, 64) for heads in (4, 2, 2))
    runs, bind_prefix = [], cuda_attention.bind_prefix
    monkeypatch.setattr(
        cuda_attention,
        "bind_prefix",
        lambda *given, **options: runs.append(given[4].tolist()) or bind_prefix(*given, **options),
    )
    kernels.share_prefixes(1)
    outs = []
    for attention_of in (kernels, plain):
        outs.append(aligned(torch.zeros_like(q)))
        attention_of.open(batch)
        attention_of.bind(q, k, v, outs[-1])(0)
    assert runs == [[2, 5]]
    assert torch.equal(kernels.pools.device, plain.pools.device)
    assert float((outs[0] - outs[1]).abs().max()) <= TOLERANCE[torch.float16]


def test_workspaces_of_the_checks_hold_two_rows_of_each_thread_block(gpu, monkeypatch):
    """Of one sequence of few heads these are more than the chunks of its context can be."""
    case = next(case for case in cases() if case.plan.shares and case.plan.num_warps == 2)
    launches, none = [], SimpleNamespace(threads=0)
    for module in (attention, prefill_attention):
        monkeypatch.setattr(module, "Launch", lambda *launch: launches.append(launch) or none)
        monkeypatch.setattr(module, "multiprocessors", lambda: 132)
    monkeypatch.setattr(verify_attention, "multiprocessors", lambda: 132)
    monkeypatch.setattr(reference, "paged_prefill", lambda q, *batch: q)
    check_shared(case)
    assert len(launches) == 2


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: f"{case.shape.head_size}")
def test_attention_kernels_equal_their_reference_in_all_forms(gpu, case):
    assert_right(check_forms(case), case)


@pytest.fixture
def tensor_copies(gpu, monkeypatch):
    """Of the prefill kernels, only the one with roles, barriers and tensor copies is checked."""
    kinds = {"tma": ("tma", False)}
    monkeypatch.setattr(verify_attention, "prefill_kinds", lambda *shape: kinds)


def prefill_errors(num_schedules):
    """Errors of each of so many batches and schedules."""
    for seed in range(num_schedules):
        case = Case(OF_BLOCKS.shape, seed, OF_BLOCKS.plan, 300)
        yield max(check_prefill(case, PLAIN).values())


@pytest.mark.usefixtures("tensor_copies")
def test_prefill_is_right_in_any_schedule():
    assert max(prefill_errors(6)) <= TOLERANCE[torch.float16]


def test_writes_and_copies_are_exact(gpu):
    assert check_write(np.random.default_rng(0))
    assert all(check_copy(np.random.default_rng(seed)) for seed in range(5))


@pytest.fixture
def host_memory(gpu, monkeypatch):
    """Memory of the host, which the emulated GPU takes for its own too."""
    monkeypatch.setattr(cache_ops, "check_host", launch.view)
    monkeypatch.setattr(
        verify_moves, "pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype)
    )
    monkeypatch.setattr(cache_ops, "issue", lambda copies, stream: [copied(*c) for c in copies])


def copied(target, source, num_bytes):
    emulated_gpu.copy_memory(target, source, num_bytes, cache_ops.ANY_MEMORY, 0)


@pytest.mark.usefixtures("host_memory")
@pytest.mark.parametrize("check", [check_swap, check_unload])
def test_blocks_move_to_the_host_and_back_exactly(check):
    assert all(check(np.random.default_rng(seed)) for seed in range(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [5, 1000, 5000])
def test_draws_by_the_kernel_are_those_of_torch(gpu, dtype, vocab_size):
    assert all(check_draws(np.random.default_rng(seed), vocab_size, dtype) for seed in range(3))


@pytest.mark.usefixtures("tensor_copies")
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(r"wait_barrier\(barriers \+ Q_FREE[^;]*;", id="wait for queries to be read"),
        pytest.param(r"wait_barrier\(ring\.free[^;]*;", id="wait for tiles to be read"),
        pytest.param(r"wait_barrier\(at\.barriers \+ K_FULL[^;]*;", id="wait for keys"),
        pytest.param(r"if \(at\.lane == 0\) arrive\(at\.barriers \+ V_FREE[^;]*;", id="arrival"),
    ],
)
def test_a_kernel_that_lacks_a_wait_or_an_arrival_is_found(monkeypatch, statement):
    def faulty(source):
        text, count = re.subn(statement, "", translated(source), count=1)
        assert count
        return text

    monkeypatch.setattr(emulated_gpu, "translated", faulty)
    assert is_found()


def is_found():
    """True if values are wrong, or all threads wait."""
    try:
        return max(prefill_errors(8)) > TOLERANCE[torch.float16]
    except LaunchFailed:
        return True
