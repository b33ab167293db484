"""Facts about a policy and its scheduler that an engine needs, found in this one place."""

from collections.abc import Mapping

from testbed.memory.policy import MemoryPolicy
from testbed.sched.scheduler import Scheduler


def is_measured_in_spans(policy: MemoryPolicy) -> bool:
    """Whether its memory can be measured over whole spans: it answers for the footprint of every
    sequence, and every stored token stays.
    """
    has_footprints = type(policy).footprint is not MemoryPolicy.footprint
    return has_footprints and not policy.drops_tokens


def reveal_lengths(scheduler: Scheduler, lengths: Mapping[int, int]) -> None:
    """Give true output lengths to the parts that have declared that they read them."""
    for reader in (scheduler, scheduler.policy, scheduler.preemption):
        if reader.reads_output_len:
            reader.foresee(lengths)
