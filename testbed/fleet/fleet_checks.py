"""Refuses configurations that are not modelled with several engines."""

from functools import partial

from testbed.core.errors import InputError
from testbed.core.request import Workload
from testbed.fleet.routers.router import Router
from testbed.fleet.shared_tiers import named, sharer_of
from testbed.memory.prefix_cache.eviction.order import oracle_of
from testbed.run.config import RunConfig
from testbed.run.oracles import future_read
from testbed.run.parts import Part
from testbed.sched.scheduler import Scheduler

Refusal = partial[InputError]  # of one option


def check_fleet(
    config: RunConfig, workload: Workload, scheduler: Scheduler, router: Router
) -> None:
    """Raise InputError for what several engines cannot do, or what the router cannot know."""
    if config.engine is not None:
        raise InputError(key="replicas", problem="a GPU serves alone", remedy="leave engine out")
    _check_router(router, workload)
    _check_shared_tiers(config, scheduler)
    if config.replicas == 1 and config.faults is None:
        return
    refusal = partial(InputError, key=f"replicas={config.replicas}")
    for name in ("stop_at_latency", "window_s"):
        if getattr(config, name) is not None:
            raise refusal(
                problem=f"{name} is not modelled for several engines", remedy="set it to null"
            )
    for name in ("policy", "preemption"):
        part: Part = getattr(config, name)
        if any(inner.is_instance for _, inner in part.nested(name)):
            raise refusal(
                problem=f"{name} is an object, or has one, and each engine needs its own",
                remedy="give the class",
            )
    if scheduler.memory.foresees_prompts is not None and has_oracle(config.policy):
        raise refusal(
            problem=(
                "an eviction order that knows all future prompts does not know which engine gets "
                "them"
            ),
            remedy="choose another eviction",
        )


def _check_router(router: Router, workload: Workload) -> None:
    name = type(router).__name__
    requests = getattr(workload, "requests", ())
    has_sessions = workload.rows.sessions is not None
    lacks_sessions = not has_sessions and all(request.session is None for request in requests)
    if router.needs_sessions and lacks_sessions:
        raise InputError(
            key="router",
            value=name,
            problem="the requests belong to no sessions",
            remedy="choose a trace with sessions, or another router",
        )
    has_content = workload.rows.prompt_ids is not None
    reads_caches = router.cache_age_s is not None
    lacks_content = not has_content and all(request.prompt_ids is None for request in requests)
    if reads_caches and lacks_content:
        raise InputError(
            key="router",
            value=name,
            problem="the trace has no prompt content, so no cache has a prefix of it",
            remedy="choose a trace with prompt ids, or another router",
        )


def _check_shared_tiers(config: RunConfig, scheduler: Scheduler) -> None:
    """Raise InputError if the policy cannot share the tiers. It is asked to share its own tiers
    with itself, which every policy that shares tiers can do.
    """
    if config.server.shared_tiers:
        sharer = sharer_of(scheduler.memory)
        sharer.share_tiers(named(sharer.lower_tiers(), config.server.shared_tiers))


def has_oracle(policy: Part) -> bool:
    """True if the policy evicts by an order that reads the future."""
    eviction = policy.parameters.get("eviction")
    return isinstance(eviction, Part) and oracle_of(eviction.make("eviction")) is not None


def check_split(config: RunConfig, workload: Workload, scheduler: Scheduler) -> None:
    """Raise InputError for what is not modelled if some engines prefill for others."""
    refusal = partial(InputError, key=f"prefill_replicas={config.prefill_replicas}")
    if config.router is not None and config.router.is_instance:
        raise refusal(
            problem="router is an object, and the prefill and the decode engines need one each",
            remedy="give the class",
        )
    _check_sampling(refusal, workload)
    _check_scheduler(refusal, scheduler)
    if future := future_read(policy=config.policy, scheduler=config.scheduler):
        raise refusal(
            problem=f"hand-overs are not modelled with a {future}",
            remedy="choose one that reads nothing of the future",
        )
    memory = scheduler.memory
    if memory.leases is None or memory.layered is not None:
        raise refusal(
            problem=f"hand-overs are not modelled with policy={memory.name}",
            remedy=(
                "choose policy=paged, or another policy with leases and without groups of layers"
            ),
        )


def _check_sampling(refusal: Refusal, workload: Workload) -> None:
    requests = getattr(workload, "requests", ())
    sequences = [workload.num_seqs, *[request.num_seqs for request in requests]]
    if workload.rows.num_seqs is not None:
        sequences += workload.rows.num_seqs.tolist()
    if max(sequences) > 1:
        raise refusal(
            problem="hand-overs of several sequences are not modelled",
            remedy="give each request one",
        )
    if workload.rows.registered_prefix:
        raise refusal(
            problem="hand-overs are not modelled with a registered prefix", remedy="leave it out"
        )


def _check_scheduler(refusal: Refusal, scheduler: Scheduler) -> None:
    name = type(scheduler).__name__
    by_rank = not scheduler.serves_as_they_come
    if by_rank or scheduler.limits is None:
        raise refusal(
            problem=f"hand-overs are not modelled with scheduler={name}",
            remedy=(
                "choose one that serves in order of arrival, such as scheduler=mixed or vllm_v1, "
                "without --from-sglang, or leave prefill_replicas out"
            ),
        )
    if scheduler.plans_ahead:
        raise refusal(
            problem=f"hand-overs are not modelled with scheduler={name}, which plans ahead",
            remedy="--no-async-scheduling in a server's command; else scheduler=vllm_v1",
        )
