"""Puts an engine together: which kernels a policy's tables are read by, and on which device."""

from dataclasses import dataclass
from typing import Any

import torch

from kernels.engine.architecture import Architecture
from kernels.engine.clock import Clock, RealClock
from kernels.engine.gpu_engine import Engine
from kernels.engine.gpu_timer import GpuTimer, HostTimer
from kernels.engine.layout import Blocks, Extents, Layout
from kernels.engine.maths import PlainMaths
from kernels.engine.network import Network
from kernels.engine.plain_attention import PlainAttention
from kernels.engine.pool_moves import PlainMoves
from kernels.engine.pools import Pools, make_pools
from kernels.engine.runner import Runner, live_tables
from kernels.engine.sampling import Sampler, TopP
from kernels.engine.shadow import NoShadow, Shadow
from kernels.engine.speaker import Speaker
from kernels.engine.streams import Streams
from kernels.engine.weights import Weights
from testbed.core.errors import InputError
from testbed.core.slots import HOST
from testbed.memory.contiguous.contiguous import Contiguous
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.scheduler import Scheduler

MAX_BLOCK_SIZE = 256  # of the paged kernels


@dataclass(frozen=True)
class Options:
    """How an engine runs. device: "cpu" runs everything plainly in torch, "cuda" by the kernels.

    debug checks every slot at every step; seed decides prompts without content and draws; parallel samples where a
    request asks for several sequences. graphs is the largest batch of decodes that
    is captured as a CUDA graph, 0 for none; warm lists the sizes of
    prompt batches that run once beforehand; registered is the provider's prefix.
    """

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    debug: bool = False
    seed: int = 0
    parallel: Sampler | None = None
    clock: Clock | None = None
    window_s: tuple[float, float] | None = None
    graphs: int = 0
    warm: tuple[int, ...] = ()
    registered: int = 0


def assemble(scheduler: Scheduler, pool: PoolSpec, arch: Architecture, weights: Weights, options: Options) -> Engine:
    """An engine for this scheduler, whose policy manages `pool`."""
    policy, spec = scheduler.policy, arch.spec
    if policy.drops_tokens:
        raise InputError(f"{type(policy).__name__} drops tokens, which the engine's attention does not know")
    layout = layout_of(policy, spec.num_kv_heads)
    host_slots = pool.slots_of(HOST)
    pools = make_pools(spec, pool.num_slots, host_slots, layout.block_size, options.device, options.dtype)
    speaker = Speaker(Streams(spec.vocab_size, options.seed), options.parallel or TopP(seed=options.seed))
    residents = scheduler.residents
    parts = _cuda_parts if options.device != "cpu" else _plain_parts
    network, attention, moves, timer = parts(arch, weights, pools, layout, residents)
    max_len = min(spec.max_len, pool.max_len)
    longest = min(max_len, pool.num_slots)
    runner = Runner(residents, network, attention, moves, layout, speaker, timer, NoShadow(), longest)
    if options.debug:
        runner.shadow = Shadow(residents, pools, runner.tables, speaker.streams, host_slots)
    if options.registered:
        runner.register_prefix(options.registered)
    if options.graphs and options.device != "cpu":
        _capture(runner, options.graphs, max_len)
    for num_tokens in options.warm:
        runner.warm(num_tokens)
    clock = options.clock or RealClock()
    return Engine(scheduler, runner, clock, timer, max_len, options.window_s)


def layout_of(policy: MemoryPolicy, num_kv_heads: int) -> Layout:
    """Extents for policies that reserve one a sequence; else blocks, of one slot where the policy names no size."""
    if isinstance(policy, Contiguous):
        return Extents(num_kv_heads)
    size = getattr(policy, "block_size", 1)
    while size > MAX_BLOCK_SIZE:  # half a block is a block too
        if size % 2:
            raise InputError(f"{type(policy).__name__}: block_size is {size}; the paged kernels take up to 256")
        size //= 2
    return Blocks(num_kv_heads, size)


def _capture(runner: Runner, max_num_seqs: int, longest: int) -> None:
    from kernels.engine.graphs import DecodeGraphs

    graphs = DecodeGraphs(runner.network, runner.attention, longest, runner.forward, runner.timer.launched)
    graphs.capture(max_num_seqs, longest)
    runner.forward = graphs.forward


def _plain_parts(arch: Architecture, weights: Weights, pools: Pools, layout: Layout, residents: Any) -> Any:
    moves = PlainMoves(pools, layout, lambda: [table for _, table in live_tables(residents)])
    return Network(arch, weights, PlainMaths()), PlainAttention(pools, layout), moves, HostTimer()


def _cuda_parts(arch: Architecture, weights: Weights, pools: Pools, layout: Layout, residents: Any) -> Any:
    from kernels.engine.cuda_attention import PagedAttention
    from kernels.engine.cuda_moves import CudaMoves
    from kernels.engine.extent_attention import ExtentAttention
    from kernels.engine.fused_maths import FusedMaths

    kind = ExtentAttention if isinstance(layout, Extents) else PagedAttention
    moves = CudaMoves(pools, layout, lambda: [table for _, table in live_tables(residents)])
    return Network(arch, weights, FusedMaths()), kind(pools, layout), moves, GpuTimer()
