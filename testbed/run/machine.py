"""The pools of a configured server, and whether its costs were measured on such a machine."""

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

from testbed.core.errors import DoesNotFit, InputError
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import GIB, GpuSpec, ModelSpec, ServerSpec
from testbed.cost.known_profiles import check_shipped_sheet
from testbed.cost.model import NO_SOFTWARE, CostModel
from testbed.cost.sections import USUAL_BLOCK
from testbed.cost.transfer_times import tier_bandwidths
from testbed.memory.capabilities import capabilities_of
from testbed.memory.policy import PoolSpec, Tier
from testbed.run.config import Machine, RunConfig, ServerConfig, SoftwareConfig, defaults_of
from testbed.run.constructor_parameters import parameters_of
from testbed.run.parts import Part
from testbed.speculation.drafter_memory import DrafterMemory, drafter_memory
from testbed.speculation.speculation import Speculation

ITERATIONS = "iterations"  # the parameter of costs that names profiles of whole iterations
VLLMS = "testbed.sched.vllm_v1.AsyncVllmV1", "testbed.sched.vllm_v1.VllmV1"
KNOWN_TIERS = {DEVICE: "the GPUs' memory", HOST: "the swap space"}


def make_pool(config: RunConfig, speculation: Speculation | None = None) -> PoolSpec:
    """The device's pool and the host's, from the server's memory or from a number of blocks. A slot
    has a token's K and V of the drafter too.
    """
    model, server = config.model, config.server
    drafter = DrafterMemory()
    if speculation is not None:
        drafter = drafter_memory(speculation, model, server.num_gpus)
    if server.kv_memory_of is not None and model.name in server.kv_memory_gib:
        _check_machine(model, server, server.kv_memory_of)
    if problem := model.heads_problem(server.num_gpus):
        raise _refused_heads(model, server.num_gpus, problem)
    block_size = block_size_of(config.policy)
    num_slots = _num_slots(config, block_size, drafter)
    token_bytes = model.kv_bytes_on(server.num_gpus) + drafter.token_bytes
    layers = model.num_attention_layers + drafter.num_layers
    if token_bytes % layers:  # layers of a draft model of another shape: a slot as a whole
        layers = 1
    host_slots = int(config.swap_space_gib * GIB) * server.num_gpus // token_bytes
    tiers = [Tier(HOST, host_slots, server.gpu.host_bandwidth)]
    if server.tiers:
        tiers += _lower_tiers(model, server, block_size or 1)
    return PoolSpec(
        num_slots=num_slots,
        max_len=model.max_len,
        tiers=tuple(tiers),
        layer_bytes=token_bytes // layers,
        num_layers=layers,
        num_gpus=server.num_gpus,
        groups=model.groups_on(server.num_gpus),
    )


def _lower_tiers(model: ModelSpec, server: ServerSpec, block_size: int) -> list[Tier]:
    """The tiers of the server, checked."""
    tiers = list[Tier]()
    for name, tier in (server.tiers or {}).items():
        if name in (DEVICE, HOST):
            raise InputError(
                key=f"server.tiers.{name}",
                problem=f"is the name of {KNOWN_TIERS[name]}",
                remedy="choose another name",
            )
        num_slots = int(tier.size_gib * GIB) // model.kv_bytes_per_token
        bandwidth, write_bandwidth = tier_bandwidths(server, tier)
        tiers.append(Tier(name, num_slots, bandwidth, write_bandwidth, tier.latency_s))
    _check_tiers(tiers, block_size)
    return tiers


def _check_tiers(tiers: Sequence[Tier], block_size: int) -> None:
    """Each tier holds a block. Blocks that it has no room for go to the next, no faster one."""
    for tier in tiers:
        if tier.num_slots < block_size:
            raise InputError(
                key=f"server.tiers.{tier.name}",
                problem=f"its {tier.num_slots} slots hold no block of {block_size} tokens",
                remedy="raise size_gib, or leave the tier out",
            )
    for above, below in pairwise(tiers):
        if below.bandwidth > above.bandwidth:
            raise InputError(
                key="server.tiers",
                problem=(
                    f"{above.name} ({above.bandwidth / 1000000000.0:g} GB/s) is above {below.name} "
                    f"({below.bandwidth / 1000000000.0:g} GB/s): give the faster tier first"
                ),
            )


def cost_of(config: RunConfig) -> CostModel:
    """The cost model of a run, with the measured times of the policy's blocks if it names none.
    Whole iterations were measured with vLLM V1's scheduler, in one engine without drafts, on blocks
    of 16 tokens: other runs take none by themselves, and refuse those of one's own. If the host's
    slowness changes, the seed draws the moment at which the run begins.
    """
    part, block_size = config.cost, block_size_of(config.policy)
    is_as_measured = (
        config.scheduler.name in VLLMS
        and config.speculation is None
        and config.prefill_replicas is None
        and block_size in (None, USUAL_BLOCK)
    )
    if ITERATIONS in part.parameters and not is_as_measured:
        named = part.parameters[ITERATIONS]
        if named is not None and named != (config.software and config.software.iterations):
            raise InputError(
                key=f"cost.{ITERATIONS}",
                value=named,
                problem=(
                    "nothing reads it, for whole iterations were measured with "
                    "scheduler=vllm_v1_async (vllm_v1 adds its launches), in one engine without "
                    f"drafts, on blocks of {USUAL_BLOCK} tokens"
                ),
                remedy="leave it out",
            )
        part = part.updated(**{ITERATIONS: None})
    choices = part.parameters.get("choices")
    if isinstance(choices, Part) and choices.parameters.get("block_size") is None:
        part = part.updated(choices=choices.updated(block_size=block_size))
    cost = make_cost(part, config.model, config.server, config.software)
    if (slowness := cost.slowness) is not None:
        cost = copy(cost)  # it may be an object of the caller's
        cost.slowness = slowness.of_seed(config.seed)
    return cost


def make_cost(
    part: Part, model: ModelSpec, server: ServerConfig, software: SoftwareConfig | None = None
) -> CostModel:
    """The cost model; one that was measured on another GPU than the server's is refused, and one
    that charges the software time of another system than `software`.
    """
    cost: CostModel = part.make("cost", model, server)
    charged = cost.software
    if software is not None and charged not in (None, NO_SOFTWARE, software.name):
        raise InputError(
            key="software",
            value=software.name,
            problem=f"these costs charge the software time of {charged}",
            remedy=(
                f"cost=auto charges that of {software.name}; software={charged} says that this is "
                "meant; cost.software.overhead_s=S is your own"
            ),
        )
    origin = cost.fingerprint or {}
    check_device(origin, server.gpu, "the server")
    if not cost.has_data_sheet:
        check_shipped_sheet(origin, server.gpu)
    if "source" in part.parameters and "from" in origin:
        check_device(origin["from"], part.parameters["source"].make("cost.source"), "cost.source")
    return cost


def check_device(fingerprint: Mapping[str, Any], gpu: GpuSpec, whose: str) -> None:
    """A profile is of the GPU whose data sheet is at hand, measured there or derived for it."""
    device = fingerprint.get("device")
    if device in (None, gpu.name, gpu.device):
        return
    own_device = (
        f"{gpu.name} ({gpu.device})"
        if gpu.device
        else f"{gpu.name} (whose data sheet names no device)"
    )
    raise InputError(
        key="the profile",
        problem=f"is of {device}, {whose} has {own_device}",
        remedy="choose that GPU, or let cost=auto derive the times for yours",
    )


def _check_machine(model: ModelSpec, server: ServerConfig, there: Machine) -> None:
    """A pool in GiB is what one machine had left: it is valid for no other."""
    here = Machine(server.gpu.name, server.num_gpus)
    if here == there:
        return
    different = [
        name for name in ("gpu", "num_gpus") if getattr(here, name) != getattr(there, name)
    ]
    same = " ".join(f"server.kv_memory_of.{name}={getattr(here, name)}" for name in different)
    raise InputError(
        key="server.kv_memory_gib",
        problem=(
            f"has {model.name}'s pool on {there.num_gpus} {there.gpu}, the server has "
            f"{here.num_gpus} {here.gpu}"
        ),
        remedy=f"~server.kv_memory_gib computes the pool, {same} keeps it",
    )


def _refused_heads(model: ModelSpec, num_gpus: int, problem: str) -> InputError:
    """Tensor parallelism gives each GPU whole heads, as many as any other."""
    counts = [n for n in (1, 2, 4, 8, 16, 32) if not model.heads_problem(n)]
    return InputError(
        key="server.num_gpus",
        value=num_gpus,
        problem=f"of {model.name} {problem}",
        remedy=f"give one of {', '.join(map(str, counts))}",
    )


def _check_given_pool(
    server: ServerConfig, model: ModelSpec, num_slots: int, drafter: DrafterMemory
) -> None:
    pool_key = (
        f"server.kv_memory_gib.{model.name}" if server.num_blocks is None else "server.num_blocks"
    )
    token_bytes = model.kv_bytes_on(server.num_gpus) + drafter.token_bytes
    weight_bytes = model.weight_bytes + drafter.weight_bytes
    memory, wanted = server.num_gpus * server.gpu.memory_bytes, num_slots * token_bytes
    if wanted + weight_bytes > memory:
        raise DoesNotFit(
            key=pool_key,
            problem=(
                f"a pool of {wanted / GIB:,.4g} GiB with {weight_bytes / GIB:,.4g} GiB of weights "
                f"does not fit the {memory / GIB:,.4g} GiB of {server.num_gpus} {server.gpu.name}"
            ),
            remedy="give a smaller pool",
        )
    usual = defaults_of(ServerConfig)
    for name in ("memory_utilization", "workspace_gib"):
        if getattr(server, name) != usual[name]:
            raise InputError(
                key=f"server.{name}",
                value=f"{getattr(server, name):g}",
                problem=(
                    f"nothing reads it, for {pool_key} gives the pool (~server.kv_memory_gib and "
                    "server.num_blocks=null compute it)"
                ),
            )


def block_size_of(policy: Part) -> int | None:
    """The tokens of a block that a policy will have, which size the pool that it is built on; None
    if it has none, or will refuse what is given. `layout().block_size` is what it has.
    """
    if policy.is_instance:
        return capabilities_of(policy.target).block_size
    usual = parameters_of(policy.maker("policy")).plain_defaults
    block_size = {**usual, **policy.parameters}.get("block_size")
    is_size = isinstance(block_size, int) and not isinstance(block_size, bool) and block_size > 0
    return block_size if is_size else None


def _num_slots(config: RunConfig, block_size: int | None, drafter: DrafterMemory) -> int:
    """The device's slots that sequences may have: without those of the null blocks, which the
    server counts in its pool. Raises InputError for a pool that does not fit the memory.
    """
    model, server = config.model, config.server
    if server.num_blocks is not None:
        num_slots = _slots_of_blocks(server.num_blocks, server, model, block_size)
    else:
        num_slots = server.kv_slots(
            model,
            more_token_bytes=drafter.token_bytes,
            more_weight_bytes=drafter.weight_bytes,
        )
    if server.num_blocks is not None or model.name in server.kv_memory_gib:
        _check_given_pool(server, model, num_slots, drafter)
    null_slots = config.null_blocks * (block_size or 0)
    if null_slots and null_slots >= num_slots:
        raise InputError(
            key="null_blocks",
            value=config.null_blocks,
            problem="the pool has no more blocks",
            remedy="give it more",
        )
    return num_slots - null_slots


def _slots_of_blocks(
    num_blocks: int, server: ServerConfig, model: ModelSpec, block_size: int | None
) -> int:
    if block_size is None:
        raise InputError(
            key="server.num_blocks",
            value=num_blocks,
            problem=(
                "needs a policy with a block_size (without one give "
                f"'server.kv_memory_gib={{{model.name}: GIB}}')"
            ),
        )
    if model.name in server.kv_memory_gib:
        slots = server.kv_slots(model, block_size)
        if slots != num_blocks * block_size:
            raise InputError(
                key="server.num_blocks",
                value=num_blocks,
                problem=(
                    f"server.kv_memory_gib has {model.name}'s pool, {slots // block_size} blocks"
                ),
                remedy="~server.kv_memory_gib leaves only the blocks",
            )
    return num_blocks * block_size
