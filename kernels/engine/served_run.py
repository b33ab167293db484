"""A built run on this machine: its engine, assembled for its policy and device; its requests served
in real time.
"""

from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from torch import OutOfMemoryError

from testbed.core.errors import InputError
from testbed.core.request import without_answers
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.engine.wall_clock import WallClock
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.device_memory import free
from testbed.kernels.engine.draft_checks import check_speculation
from testbed.kernels.engine.engine_drafter import drafting_model, make_drafter
from testbed.kernels.engine.gpu_engine import GpuEngine
from testbed.kernels.engine.layout import Blocks, Pages, layout_of
from testbed.kernels.engine.models import Model, architecture, weights_of
from testbed.kernels.engine.on_device import Graphs, on_device, with_graphs
from testbed.kernels.engine.parallel.leader import ALONE, Alone
from testbed.kernels.engine.parallel.processes import start
from testbed.kernels.engine.parallel.watch import WorkerError, out_of_memory
from testbed.kernels.engine.parallel.worker import Source
from testbed.kernels.engine.pool_moves import live_tables
from testbed.kernels.engine.records import Timer, write_run
from testbed.kernels.engine.runner import Runner
from testbed.kernels.engine.sampler import Sampler, TopP
from testbed.kernels.engine.slot_checker import SlotChecker
from testbed.kernels.engine.token_buffers import TokenBuffers
from testbed.kernels.engine.weights import Weights
from testbed.kernels.launch.compile import KernelsUnavailable, require_gpu
from testbed.kernels.launch.decode_plan import WORTH_SHARING
from testbed.kernels.measure.timing import fingerprint, memory_gib
from testbed.memory.capabilities import Capabilities
from testbed.memory.policy import PoolSpec
from testbed.run.build import Setup
from testbed.run.config import EngineConfig
from testbed.run.speculating import drafts_of
from testbed.run.summaries import RUN
from testbed.sched.beam_search import SyntheticBeams
from testbed.sched.scheduler import Scheduler


@dataclass(frozen=True)
class Options:
    """Options of an engine, as in EngineConfig.

    debug checks every slot at every step; seed determines prompts without content and random draws;
    parallel samples the sequences of a request with several; registered is the length of the
    registered prefix; lengths: what the oracles of the run read, see `simulate`; launches_ahead:
    see GpuExecutor; prompt_graphs: the most tokens of an iteration with prompts that is launched
    as graphs; share_from: see Graphs; drafter: the model that drafts, if one does.
    """

    debug: bool = False
    seed: int = 0
    parallel: TopP | None = None
    clock: WallClock | None = None
    window_s: tuple[float, float] | None = None
    graphs: int = 0
    warm: tuple[int, ...] = ()
    registered: int = 0
    lengths: dict[int, int] | None = None
    launches_ahead: bool = True
    prompt_graphs: int = 0
    share_from: float = inf
    drafter: Model | None = None


def assemble(
    scheduler: Scheduler,
    pool: PoolSpec,
    arch: Architecture,
    weights: Weights,
    options: Options,
    lead: Alone = ALONE,
) -> GpuEngine:
    """An engine for this scheduler, whose policy manages `pool`; by kernels if the weights
    have 16 bits on a GPU. arch, weights: of rank 0, if `lead` leads workers.
    """
    clock = options.clock or WallClock()
    max_len = min(arch.spec.max_len, pool.max_len)
    runner = _runner(scheduler, pool, arch, weights, options, lead)
    _get_ready(runner, pool, max_len, options, lead)
    lead.watched_by(clock)
    return GpuEngine(
        scheduler,
        runner,
        clock,
        max_len,
        options.window_s,
        options.lengths,
        launches_ahead=options.launches_ahead,
        close=lead.close,
    )


def _runner(
    scheduler: Scheduler,
    pool: PoolSpec,
    arch: Architecture,
    weights: Weights,
    options: Options,
    lead: Alone,
) -> Runner:
    """The runner that carries the plans out on the device: the network, its caches, a sampler and a
    drafter, with a checker of slots in debug mode.
    """
    state = scheduler.state
    layout = _checked_layout(scheduler.memory, arch, options)
    device = on_device(arch, weights, pool, layout, live_tables(state), lead.ranks)
    sampler = Sampler(
        TokenBuffers(arch.spec.vocab_size, options.seed),
        options.parallel or TopP(seed=options.seed),
    )
    sampler.get_ready(weights.embedding)
    # In pages all layers share a pool, whose slots are those of one layer
    num_tokens = pool.num_slots // (arch.spec.num_layers if isinstance(layout, Pages) else 1)
    timer = Timer(weights.embedding.is_cuda, lead.device_wait)
    parts = device.network, device.attention, lead.moves(device.moves)
    longest = min(arch.spec.max_len, pool.max_len, num_tokens)
    runner = Runner(state, *parts, sampler, timer, longest)
    runner.drafter = make_drafter(scheduler, runner, pool, options.drafter)
    if options.debug:
        checker = SlotChecker(state, device.pools, runner.tables, sampler.token_buffers, pool)
        _follow_slots(runner, checker, lead)
    return runner


def _follow_slots(runner: Runner, checker: SlotChecker, lead: Alone) -> None:
    """Let the checker see each write and read of a slot, and erase slots that no sequence holds."""
    runner.slot_checker = checker
    checker.erase = lead.erasing(checker.erase)
    runner.drafter.followed_by(checker)


def _get_ready(runner: Runner, pool: PoolSpec, max_len: int, options: Options, lead: Alone) -> None:
    """Capture graphs, store the registered prefix, and warm up, on all ranks."""
    with lead.guard():
        _launch_by_graphs(runner, pool, max_len, options, lead)
        if options.registered:
            runner.register_prefix(options.registered)
        for num_tokens in options.warm:
            runner.warm(num_tokens)


def _launch_by_graphs(
    runner: Runner, pool: PoolSpec, max_len: int, options: Options, lead: Alone
) -> None:
    """Capture the graphs, on all ranks at the same time; forward passes run on all from then on."""
    graphs = Graphs(options.graphs, options.prompt_graphs, max_len, options.share_from)
    captures = lead.build(pool, runner.tables.layout, graphs, debug=options.debug)
    otherwise = runner.eager, runner.timer.launched
    parts = runner.network, runner.attention, graphs, captures, *otherwise
    runner.forward = lead.forward(with_graphs(*parts), runner.tables, is_eager=False)
    runner.eager = lead.forward(runner.eager, runner.tables, is_eager=True)
    runner.drafter.capture(graphs, captures)


def _checked_layout(memory: Capabilities, arch: Architecture, options: Options) -> Blocks:
    """The layout of the policy's tables; InputError if the engine cannot serve it."""
    if memory.drops_tokens is not None:
        raise InputError(
            key=memory.name, problem="drops tokens, which the engine's attention does not support"
        )
    layout = layout_of(memory, arch.spec.num_kv_heads, arch.windows)
    if isinstance(layout, Pages) and options.debug:
        raise InputError(
            key="engine.debug",
            value="true",
            problem="checks no tables of several groups",
            remedy="set engine.debug=false",
        )
    return layout


def serve_into(folder: Path, setup: Setup, engine: GpuEngine | None = None) -> dict[str, Any]:
    """Serve the workload and write the folder's tables; returns the summary without writing it.

    engine: a result of `make_engine` for this setup, if the caller inspects it afterwards.
    """
    with engine or make_engine(setup) as engine:
        records = engine.serve(without_answers(setup.workload))
        about = about_device(setup)
    counters = dict(setup.scheduler.policy.counters())
    summary = write_run(
        folder,
        records,
        setup.pool.num_slots,
        setup.window_ps,
        setup.slo,
        setup.workload.rows.sessions,
    )
    extra = {
        "stopped_at_latency": None,
        "cost_profile": None,
        "counters": counters,
        "engine": about,
        **drafts_of(setup.scheduler),
    }
    return {RUN: dict(setup.description), **summary, **extra}


def make_engine(
    setup: Setup, weights: Weights | None = None, clock: WallClock | None = None
) -> GpuEngine:
    """The engine of a setup, with workers if it has several GPUs; `weights` are the model's,
    if they are in memory already. clock: a new one by default. Close it after use.
    """
    _check(setup)
    options, num_gpus = engine_options(setup.config.engine), setup.config.server.num_gpus
    if options.device != "cpu":
        free()  # what earlier engines of this process have left
    arch, chosen = architecture(options.weights, setup.model), _chosen(setup, options, clock)
    seed = setup.config.seed
    if num_gpus > 1:
        source = Source(arch, options.weights, seed, options.device, options.dtype)
        return _parallel_engine(setup, source, chosen, weights)
    weights = weights or weights_of(arch, options.weights, seed, options)
    return assemble(setup.scheduler, setup.pool, arch, weights, chosen)


def _parallel_engine(
    setup: Setup, source: Source, options: Options, weights: Weights | None
) -> GpuEngine:
    num_gpus = setup.config.server.num_gpus
    if weights is not None:
        raise InputError(
            key="server.num_gpus",
            value=num_gpus,
            problem="the workers load their weights themselves",
            remedy="give none",
        )
    try:
        arch, own, lead = start(source, num_gpus)
        try:
            return assemble(setup.scheduler, setup.pool, arch, own, options, lead)
        except BaseException:
            with suppress(WorkerError):
                lead.close()
            raise
    except OutOfMemoryError as error:
        raise WorkerError(out_of_memory(error)) from error


def _chosen(setup: Setup, options: EngineConfig, clock: WallClock | None) -> Options:
    """The options of a setup's engine."""
    config = setup.config
    prefix = (
        setup.workload.rows.registered_prefix
        if setup.scheduler.memory.registers_prefixes is not None
        else 0
    )
    parallel = TopP(options.temperature, options.top_p, config.seed)
    return Options(
        debug=options.debug,
        seed=config.seed,
        parallel=parallel,
        clock=clock,
        window_s=config.window_s,
        graphs=options.graphs,
        warm=options.warm,
        registered=prefix,
        lengths=setup.parts.lengths,
        launches_ahead=options.launches_ahead,
        prompt_graphs=options.prompt_graphs,
        share_from=WORTH_SHARING if options.share_prefixes else inf,
        drafter=drafting_model(setup, options),
    )


def engine_options(options: EngineConfig | None) -> EngineConfig:
    """The engine's options; raises InputError without their device, before weights are loaded."""
    options = options or EngineConfig()
    if options.device == "cpu":
        return options
    if not options.device.startswith("cuda"):
        raise InputError(key="engine.device", value=options.device, problem="must be cuda or cpu")
    try:
        require_gpu()
    except KernelsUnavailable as error:
        raise InputError(
            key="engine.device",
            value=options.device,
            problem=str(error),
            remedy="run it on a machine with one, or simulate",
        ) from error
    return options


def _check(setup: Setup) -> None:
    """Raise InputError for options that the engine does not support."""
    check_speculation(setup)
    _check_tiers(setup)
    if isinstance(setup.workload, AnswerDrivenWorkload):
        raise InputError(
            key="arrivals",
            problem="the engine has no closed loop",
            remedy="simulate it, or replay time stamps",
        )
    if not isinstance(setup.parts.beams, SyntheticBeams):
        raise InputError(
            key="beams",
            problem="the engine's searches follow the model's scores",
            remedy="leave beams out, or simulate",
        )
    if setup.config.stop_at_latency is not None:
        raise InputError(
            key="stop_at_latency",
            problem="the engine serves every request",
            remedy="set it to null",
        )
    _check_order(setup.scheduler)


def _check_tiers(setup: Setup) -> None:
    """Raise InputError for tiers of another form, or that are used as another server does."""
    memory = setup.scheduler.memory
    if memory.offloads is not None or memory.loads_hits is not None:
        raise InputError(
            key="policy",
            value=memory.name,
            problem=(
                "stores and loads in the steps of another server, which the engine does not carry "
                "out"
            ),
            remedy="policy=tiered, or simulate",
        )
    tiers = setup.config.server.tiers or {}
    for name, tier in tiers.items():
        if len(tiers) > 1 or tier.read_bandwidth or tier.write_bandwidth:
            raise InputError(
                key=f"server.tiers.{name}",
                problem="the engine has one tier, in the host's memory, behind the GPU's link",
                remedy="give one, without bandwidths, or simulate",
            )


def _check_order(scheduler: Scheduler) -> None:
    """Raise InputError for vLLM's scheduler with ranked requests and a prefix cache: a request that
    is preempted in the plan that scheduled it leaves blocks findable that were never computed.
    """
    is_ranked = scheduler.steps_in_turn and not scheduler.serves_as_they_come
    if is_ranked and scheduler.memory.publishes is not None:
        raise InputError(
            key="order",
            problem=(
                "with a prefix cache, vLLM's scheduler may let requests find blocks of a preempted "
                "one that were never computed"
            ),
            remedy="leave order out, take a policy without a prefix cache, or simulate",
        )


def about_device(setup: Setup) -> dict[str, Any]:
    """The device of the engine, and the memory of rank 0's GPU during the run."""
    fingerprint = fingerprint_of(setup)
    if fingerprint is None:
        return {"kind": "cpu", "fingerprint": None}
    return {"kind": "gpu", "fingerprint": fingerprint, "memory_gib": memory_gib()}


def fingerprint_of(setup: Setup) -> dict[str, Any] | None:
    """The GPU and its software; None on a CPU."""
    return None if (setup.config.engine or EngineConfig()).device == "cpu" else fingerprint()
