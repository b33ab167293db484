"""A run in a few words, and the tests of its costs: every summary begins with it."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from testbed.core.request import Workload
from testbed.core.specs import GIB, ModelSpec
from testbed.cost.model import CostModel
from testbed.cost.sections import SYSTEM, THIS_ENGINE
from testbed.engine.arrivals import SessionWorkload
from testbed.engine.engine_parts import EngineParts
from testbed.memory.capabilities import Capabilities
from testbed.memory.layouts import BlockLayout, ExtentLayout
from testbed.memory.policy import PoolSpec
from testbed.run.config import RunConfig
from testbed.run.constructor_parameters import parameters_of
from testbed.run.cost_words import cost_source, tested
from testbed.run.identity import code_hash
from testbed.run.oracles import future_read
from testbed.run.parts import Part
from testbed.run.speculating import capping_drafter
from testbed.run.summaries import CAPPED_BY
from testbed.sched.scheduler import Scheduler
from testbed.version import commit, release

SIMULATED = {"acceptance", "found_share", "seed"}  # of a speculation, in the tokens' place
SHOWN = (bool, int, float, str, Part)  # of parameters; others have no short text


def describe(
    config: RunConfig, pool: PoolSpec, scheduler: Scheduler, cost: CostModel
) -> dict[str, Any]:
    """Model, server, GPU, pool (slots, blocks, GiB), policy, scheduler, source of costs; the rest
    follows them.

    The pool's keys: see `_pool_numbers`.
    """
    model, server, policy = config.model, config.server, scheduler.policy
    return {
        "model": model.name,
        "server": server.name,
        "gpu": server.gpu.name,
        "num_gpus": server.num_gpus,
        **_pool_numbers(pool, scheduler.memory, model),
        **_vllms_numbers(config, pool, scheduler),
        "policy": _part(config.policy, policy),
        "scheduler": _part(config.scheduler, scheduler),
        "cost": cost_source(config, cost),
        "preemption": configured(config.preemption),
        "future_read": future_read(policy=config.policy, scheduler=config.scheduler),
        "trace": configured(config.trace),
        "arrivals": configured(config.arrivals),
        **fleet_of(config),
        **speculation_of(config, cost),
        "seed": config.seed,
        "cost_error": tested(cost, model, server)
        + _of_waiting(scheduler, cost)
        + _of_drafts(config),
        "scheduler_note": scheduler.note(
            min(model.max_len, config.workload.max_len or model.max_len)
        ),
        "policy_note": promise_note(scheduler.memory) if config.fast_forward else None,
        **software(),
    }


def _pool_numbers(pool: PoolSpec, memory: Capabilities, model: ModelSpec) -> dict[str, Any]:
    """slot_layers: the layers of which a slot has a token's K and V, all but for a policy of
    several groups; None if some of them are a drafter's, of another shape. pool_blocks and
    block_size (tokens) are None if the policy has no blocks; pool_gib is of an engine's GPUs.
    """
    layout = memory.layout
    has_other_layers = memory.layered is None and pool.num_layers < model.num_attention_layers
    size = layout.block_size if isinstance(layout, BlockLayout | ExtentLayout) else None
    block_size = size if isinstance(size, int) and size > 0 else None
    return {
        "pool_slots": pool.num_slots,
        "slot_layers": None if has_other_layers else pool.num_layers,
        "pool_blocks": None if block_size is None else pool.num_slots // block_size,
        "block_size": block_size,
        "pool_gib": round(pool.num_slots * pool.layer_bytes * pool.num_layers / GIB, 4),
    }


def _vllms_numbers(config: RunConfig, pool: PoolSpec, scheduler: Scheduler) -> dict[str, Any]:
    """The lines that vLLM would log at its start: tokens of the KV cache, the null block's
    included, and how many of its longest sequences fit; nothing of a scheduler that is not vLLM
    V1's, or of a pool without a null block.
    """
    block_size = scheduler.memory.block_size
    release, limits = scheduler.release, scheduler.limits
    model, is_hybrid = config.model, scheduler.memory.layered is not None
    has_null = is_hybrid or config.null_blocks > 0
    if release is None or limits is None or block_size is None or not has_null:
        return {}
    # These are of few runs.
    from testbed.vllm.attention_backends import with_cached_states
    from testbed.vllm.pages import logged_tokens, pages_of

    is_ahead = scheduler.plans_ahead and is_hybrid
    under_way = release.tokens_under_way(limits.max_num_batched_tokens, plans_ahead=is_ahead)
    pages = pages_of(
        model, pool.num_gpus, block_size, is_hybrid=is_hybrid, tokens_under_way=under_way
    )
    if scheduler.memory.publishes is not None:
        pages = with_cached_states(pages, model, config.server.gpu, release)
    if scheduler.drafting is not None:  # of full attention, as all that drafts are modelled for
        num_pages = pool.num_slots // block_size + 1
    else:
        num_bytes = pool.num_slots * pool.layer_bytes * pool.num_layers // pool.num_gpus
        num_pages = num_bytes // pages.page_bytes + 1  # the null page
    concurrency = pages.concurrency(num_pages, model.max_len)
    return {
        "kv_cache_tokens": logged_tokens(pages, num_pages, model.max_len, release),
        "max_model_len": model.max_len,
        "max_concurrency": round(concurrency, 2),
    }


def promise_note(memory: Capabilities) -> str | None:
    """A note on a run that takes many steps at once because a plug-in promises them; else None.
    `testbed check` has tried such promises in small pools, and no other workload.
    """
    is_plug_in = not type(memory.policy).__module__.startswith("testbed.")
    if not (is_plug_in and memory.measures_spans):
        return None
    return (
        f"many steps are taken at once, as {memory.name} promises (guaranteed_steps); "
        "testbed run -m fast_forward=true,false shows whether each by itself gives the same"
    )


def contents_note(memory: Capabilities, workload: Workload) -> str | None:
    """A note on the hits of a prefix cache whose workload names no contents; else None."""
    if memory.publishes is None or workload.names_contents:
        return None
    return (
        "the trace does not say what prompts contain, so none is found in the prefix cache "
        "(trace=random, guidellm, chat_histories and files with prompt ids do)"
    )


def answers_note(memory: Capabilities, workload: Workload) -> str | None:
    """A note on a cache of answers whose workload has sessions and does not say which prompts
    contain answers; else None.
    """
    rows = workload.rows
    if rows.sessions is None or rows.prompt_ids is None or rows.answer_id is not None:
        return None
    from testbed.memory.prefix_cache.output_caching import OutputCaching
    from testbed.memory.radix.radix import Radix

    if not isinstance(memory.policy, OutputCaching | Radix):
        return None
    return (
        "the trace does not say which prompts contain which answers, so no answer is found "
        "(trace=guidellm, chat_histories and a CSV with a column answer_of do)"
    )


def trace_note(trace: Part, scheduler: Scheduler, workload: Workload) -> str | None:
    """The trace's own note on what it draws, and that on columns that are not read."""
    own = (
        trace.make("trace").lengths_note()
        if hasattr(trace.maker("trace"), "lengths_note")
        else None
    )
    return "; ".join(filter(None, (own, _unread_note(scheduler, workload)))) or None


def _unread_note(scheduler: Scheduler, workload: Workload) -> str | None:
    """The columns of the trace that this run does not read, with the options that would; None if it
    reads all.
    """
    unread = []
    if workload.has_unread_times:
        unread.append("its times (arrivals=replay does)")
    if workload.rows.think_s is not None and not isinstance(workload, SessionWorkload):
        unread.append("its think times (arrivals=sessions does)")
    read = scheduler.columns_read()
    if "priority" in workload.optional_fields() and "priority" not in read:
        unread.append("its priorities (order=priority does)")
    return (
        f"the trace has columns that this run does not read: {', '.join(unread)}"
        if unread
        else None
    )


def samples_note(cost: CostModel, workload: Workload) -> str | None:
    """A note on costs that were measured on this project's engine, whose iterations chose the
    likeliest token of one sequence a request, if requests have several; else None.
    """
    if (cost.fingerprint or {}).get(SYSTEM) != THIS_ENGINE or not workload.has_samples:
        return None
    return (
        "the profile's iterations choose the likeliest token of one sequence a request; drawing "
        "those of several takes longer (on an H200 1.4 ms an iteration with 8 requests of four "
        "samples, 2.9 ms with 32), and is left out"
    )


def fleet_of(config: RunConfig) -> dict[str, Any]:
    """The number of engines, their router, their faults, how some prefill for others, and the
    tiers that all use; nothing of a run without a router.
    """
    if config.replicas is None:
        return {}
    router = "RoundRobin()" if config.router is None else configured(config.router)
    faults = {} if config.faults is None else {"faults": config.faults}
    split = {}
    if config.prefill_replicas is not None:
        split = {"prefill_replicas": config.prefill_replicas, "handover": _handover(config)}
    shared = ", ".join(config.server.shared_tiers)
    tiers = {"shared_tiers": shared} if shared else {}
    return {"replicas": config.replicas, "router": router, **faults, **split, **tiers}


def _handover(config: RunConfig) -> str:
    """The rule of hand-overs with its parameters, also that of a run which names none."""
    if config.handover is not None:
        return configured(config.handover)
    from testbed.fleet.handovers.whole import Whole  # of few runs

    usual = Whole()
    return _part(Part(usual), usual)


def _of_waiting(scheduler: Scheduler, cost: CostModel) -> str:
    """The time that a system's scheduler takes without plans ahead, as far as the costs have it:
    measured launches come before what the GPU computes, and no log has tested them so.
    """
    option = scheduler.synchronous_by
    if scheduler.plans_ahead or not option:
        return ""
    if cost.launches:
        return (
            f"; {option}: each iteration waits for its launch, as measured in a server that plans "
            "ahead, which no log of one that does not has tested"
        )
    return (
        f"; {option} takes no time: these costs are the same with plans ahead, so that a server's "
        "latencies are longer by what its host does between iterations"
    )


def _of_drafts(config: RunConfig) -> str:
    """The time that the tests of costs leave out of a run with speculation, and the shares of
    drafts that are accepted and of positions with one, if they are those that are assumed.
    """
    if config.speculation is None:
        return ""
    from testbed.speculation.acceptance import ASSUMED  # few runs have drafts

    acceptance = config.speculation.parameters.get("acceptance")
    rate = ASSUMED if acceptance is None else getattr(acceptance, "parameters", {}).get("rate")
    assumed = (
        f"; each draft token is accepted with probability {rate:g} if those before it are, which "
        "is more than the accepted share of all drafts that vLLM logs (speculation.acceptance; "
        "assumed if none is given), and with fewer drafts may cost more than they gain"
        if rate == ASSUMED
        else ""
    )
    return f"; the time of drafts was not tested{assumed}{_of_found(config.speculation)}"


def _of_found(speculation: Part) -> str:
    """The words on drafts that are looked for in the tokens and found wherever they are."""
    if getattr(speculation.make("speculation"), "found_share", None) != 1:
        return ""
    return (
        "; a draft is found at every position, at best (speculation.found_share=1; assumed if none "
        "is given)"
    )


def speculation_of(config: RunConfig, cost: CostModel) -> dict[str, Any]:
    """The drafter, the source of the times of drafts, and the drafter's name if it caps sequences;
    nothing of a run without speculation.
    """
    if config.speculation is None:
        return {}
    passes = "no time of the GPU" if cost.drafter is None else cost.drafter.provenance
    costs = f"drafts: {passes}; attention of several queries reads what one does"
    unread = {"efficiencies"}
    if config.engine is not None:
        costs = "measured; accepted are the drafts that the model generates itself"
        unread |= SIMULATED
    shown = {k: v for k, v in config.speculation.parameters.items() if k not in unread}
    return {
        "speculation": configured(Part(config.speculation.target, shown)),
        "draft_cost": costs,
        **({} if (drafter := capping_drafter(config)) is None else {CAPPED_BY: drafter}),
    }


def servers_of(config: RunConfig, parts: Sequence[EngineParts]) -> dict[str, str]:
    """The servers, pools and costs of the engines that have another server than the first; nothing
    if all have the same.
    """
    if not config.servers:
        return {}
    texts = [_server_of(config.of_engine(int(number)), number, parts) for number in config.servers]
    return {"servers": "; ".join(texts)}


def _server_of(config: RunConfig, number: str, parts: Sequence[EngineParts]) -> str:
    own, server = parts[int(number)], config.server
    slots = "" if own.pool is None else f", {own.pool.num_slots:,} slots"
    costs = f"{cost_source(config, own.cost)}, error {tested(own.cost, config.model, server)}"
    return f"engine {number}: {server.num_gpus} x {server.gpu.name}{slots}, {costs}"


def configured(value: Any) -> str:
    """A part of a config as one would write it in Python: `Paged(block_size=16,
    watermark=0.01)`.
    """
    if isinstance(value, Part):
        return value.name.rpartition(".")[2] + configured(value.parameters)
    if isinstance(value, Mapping):
        parameters = [f"{key}={configured(parameter)}" for key, parameter in value.items()]
        return f"({', '.join(parameters)})"
    return str(value)


def _part(part: Part, built: Any) -> str:
    """A part with its parameters: the given ones, and of a class or object also what it has under
    the names of the others.
    """
    if part.is_named:
        return configured(part)
    values = {name: getattr(built, name, None) for name in parameters_of(built.__class__).hints}
    return type(built).__qualname__ + configured(
        {k: v for k, v in (values | dict(part.parameters)).items() if isinstance(v, SHOWN)}
    )


@cache
def software() -> dict[str, str | None]:
    """Version, the commit if there is one (with + if files differ from it), and a hash of the
    simulator.
    """
    return {"version": release(), "commit": commit(), "simulator": code_hash()[:16]}
