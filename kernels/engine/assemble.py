"""Assembles an engine: chooses the device, and the kernels that read a policy's tables."""

from dataclasses import dataclass
from functools import partial

import torch

from testbed.core.errors import InputError
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.clock import Clock, Timer
from testbed.kernels.engine.gpu_engine import Engine
from testbed.kernels.engine.layout import Blocks, Extents, Layout, Pages, Pools, make_pools
from testbed.kernels.engine.maths import FusedMaths, PlainMaths
from testbed.kernels.engine.network import Network
from testbed.kernels.engine.plain_attention import Attention, PlainAttention
from testbed.kernels.engine.pool_moves import Moves
from testbed.kernels.engine.runner import Runner, live_tables
from testbed.kernels.engine.sampler import Sampler, TopP
from testbed.kernels.engine.slot_checker import NoSlotChecker, SlotChecker
from testbed.kernels.engine.token_buffers import TokenBuffers
from testbed.kernels.engine.weights import Weights
from testbed.memory.contiguous.contiguous import Contiguous
from testbed.memory.groups.grouped import Grouped
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.scheduler import Scheduler

MAX_BLOCK_SIZE = 256  # of the paged kernels


@dataclass(frozen=True)
class Options:
    """Options of an engine. device: "cpu" runs all operations in torch, "cuda" runs the kernels.

    debug checks every slot at every step; seed determines prompts without content and random draws; parallel samples
    the sequences of a request with several. graphs is the largest decode batch that is captured as a CUDA graph, 0 for
    none; warm lists the sizes in tokens of prompt batches that run once before the start; registered is the length of
    the registered prefix.
    """

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    debug: bool = False
    seed: int = 0
    parallel: TopP | None = None
    clock: Clock | None = None
    window_s: tuple[float, float] | None = None
    graphs: int = 0
    warm: tuple[int, ...] = ()
    registered: int = 0


def assemble(scheduler: Scheduler, pool: PoolSpec, arch: Architecture, weights: Weights, options: Options) -> Engine:
    """An engine for this scheduler, whose policy manages `pool`."""
    policy, spec = scheduler.policy, arch.spec
    if policy.drops_tokens or (policy.returns_slots and not isinstance(policy, Grouped)):
        raise InputError(f"{type(policy).__name__}: drops tokens, which the engine's attention does not support")
    layout = layout_of(policy, spec.num_kv_heads, arch.windows)
    pooled = isinstance(layout, Pages)  # all layers share a pool, whose slots are those of one layer
    if pooled and options.debug:
        raise InputError("engine.debug=true: checks no tables of several groups (set engine.debug=false)")
    pools = make_pools(spec, pool.num_slots, pool.tiers, layout.block_size, options.device, options.dtype,
                       1 if pooled else spec.num_layers)  # fmt: skip
    if pools.scales is not None and weights.kv_scales is not None:
        pools.scales.copy_(weights.kv_scales)
    sampler = Sampler(TokenBuffers(spec.vocab_size, options.seed), options.parallel or TopP(seed=options.seed))
    state, on_gpu = scheduler.state, options.device != "cpu"
    network = Network(arch, weights, FusedMaths() if on_gpu else PlainMaths())
    attention, kind_of_moves = (_on_gpu if on_gpu else _plain)(arch, pools, layout)
    moves, timer = kind_of_moves(pools, layout, partial(live_tables, state)), Timer(on_gpu)
    max_len = min(spec.max_len, pool.max_len)
    longest = min(max_len, pool.num_slots // spec.num_layers if pooled else pool.num_slots)
    runner = Runner(state, network, attention, moves, layout, sampler, timer, NoSlotChecker(), longest)
    if options.debug:
        runner.slot_checker = SlotChecker(state, pools, runner.tables, sampler.token_buffers, pool)
    if options.registered:
        runner.register_prefix(options.registered)
    if options.graphs and on_gpu:
        _capture(runner, options.graphs, max_len)
    for num_tokens in options.warm:
        runner.warm(num_tokens)
    clock = options.clock or Clock()
    return Engine(scheduler, runner, clock, timer, max_len, options.window_s)


def layout_of(policy: MemoryPolicy, num_kv_heads: int, windows: tuple[int | None, ...] = (None,)) -> Layout:
    """Extents for policies with one reservation per sequence, pages for those by group; else blocks.

    Blocks have one slot where the policy has no size. windows: of each layer.
    """
    if isinstance(policy, Contiguous):
        return Extents(num_kv_heads)
    if isinstance(policy, Grouped):
        if policy.pages.block_size > MAX_BLOCK_SIZE:
            raise InputError(f"policy.block_size={policy.pages.block_size}: the paged kernels support up to 256")
        return Pages(num_kv_heads, policy, windows)
    size = getattr(policy, "block_size", 1)
    while size > MAX_BLOCK_SIZE:  # a block consists of two half blocks
        if size % 2:
            raise InputError(f"{type(policy).__name__}: block_size={size}: the paged kernels support up to 256")
        size //= 2
    return Blocks(num_kv_heads, size)


def _capture(runner: Runner, max_num_seqs: int, longest: int) -> None:
    from testbed.kernels.engine.cuda_attention import CudaAttention
    from testbed.kernels.engine.graphs import DecodeGraphs

    assert isinstance(runner.attention, CudaAttention)
    graphs = DecodeGraphs(runner.network, runner.attention, longest, runner.forward, runner.timer.launched)
    graphs.capture(max_num_seqs, longest)
    runner.forward = graphs.forward


def _plain(arch: Architecture, pools: Pools, layout: Layout) -> tuple[Attention, type[Moves]]:
    return PlainAttention(pools, layout, arch.windows), Moves


def _on_gpu(arch: Architecture, pools: Pools, layout: Layout) -> tuple[Attention, type[Moves]]:
    from testbed.kernels.engine.cuda_attention import PagedAttention
    from testbed.kernels.engine.cuda_moves import CudaMoves
    from testbed.kernels.engine.extent_attention import ExtentAttention
    from testbed.kernels.launch.attention import FP8_SIZES

    if pools.scales is not None and arch.spec.head_size not in FP8_SIZES:
        raise InputError(
            f"model.kv_dtype_bytes=1: the kernels of e4m3 have head sizes {FP8_SIZES}, not {arch.spec.head_size}"
        )
    kind = ExtentAttention if isinstance(layout, Extents) else PagedAttention
    return kind(pools, layout, arch.windows), CudaMoves
