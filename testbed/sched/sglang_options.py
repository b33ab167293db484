"""Refusals of SGLang's scheduler: of its options and its policy."""

from testbed.core.errors import InputError, check_known
from testbed.memory.capabilities import Capabilities
from testbed.memory.layouts import BlockLayout

RETRACTIONS = ("length", "priority")


def page_size_of(memory: Capabilities) -> int:
    """The tokens of a page. Raises InputError for a policy that the scheduler cannot ask."""
    if memory.publishes is not None and memory.pins_hits is None:
        raise InputError(
            key="policy",
            value=memory.name,
            problem=(
                "scheduler=sglang decides about several admissions before any takes slots, which "
                "it does not support"
            ),
            remedy="policy=radix, policy=pinned_caching or policy=paged",
        )
    if not isinstance(memory.layout, BlockLayout):
        raise InputError(
            key="policy",
            value=memory.name,
            problem="has no pages of one size, which scheduler=sglang counts",
            remedy="policy=radix, policy=pinned_caching or policy=paged",
        )
    return memory.layout.block_size


def check_chunk(chunk: int | None, page_size: int) -> None:
    """Raise InputError for a chunk that ends within a page."""
    if chunk is not None and chunk % page_size:
        raise InputError(
            key="scheduler.chunked_prefill_size",
            value=chunk,
            problem=f"is no multiple of the page of {page_size} tokens",
            remedy="give one",
        )


def check_retraction(policy: str, *, by_priority: bool) -> None:
    """Raise InputError for an order of retraction that SGLang does not have, or not without
    enable_priority_scheduling.
    """
    check_known("scheduler.retraction_policy", policy, RETRACTIONS)
    if policy == "priority" and not by_priority:
        raise InputError(
            key="scheduler.retraction_policy",
            value=policy,
            problem="needs scheduler.enable_priority_scheduling=true, as in SGLang",
            remedy="give both, or neither",
        )
