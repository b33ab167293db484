"""A plan that the scheduler need not make: one request waits, and its whole prompt is computed."""

import pytest
from manual_driver import paged, scheduler_of

from testbed.core.request import Incoming
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import Mixed2023, MixedPrefill
from testbed.sched.plan import Plan, Results
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill
from testbed.sched.vllm_v1 import VllmV1

V1 = {"long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True}
SYSTEMS = [
    (MixedPrefill, Paged2023, {}),
    (Mixed2023, Paged2023, {}),
    (ChunkedPrefill, OutputCaching, {}),
    (VllmV1, OutputCaching, V1),
]
LENGTHS = [9, 30, 8, 100, 5, 60, 3]  # the fourth fits no pool, and the sixth waits


def made_of(plan):
    """All that a plan says, with numbers for its groups."""
    fields = {name: getattr(plan, name) for name in Plan.__slots__}
    fields["chunks"] = [
        (chunk.group.request.request_id, chunk.seq.seq_id, *chunk[2:]) for chunk in plan.chunks
    ]
    for name in ("preempted", "rejected"):
        fields[name] = [group.request.request_id for group in fields[name]]
    return fields


def state_of(scheduler):
    state = scheduler.state
    return (
        [(group.request.request_id, group.num_cached) for group in state.waiting],
        [(seq.seq_id, seq.num_slots, seq.num_stored, seq.version) for seq in state.batch],
        [*state.running],
        state.refused is None,
        state.policy.usage(),
    )


@pytest.mark.parametrize(("kind", "policy", "options"), SYSTEMS)
def test_it_is_the_plan_of_the_scheduler(kind, policy, options):
    """Requests come one by one, each while those before it decode, until the pool of 24 blocks is
    full.
    """
    limits = {"max_num_batched_tokens": 2560, "max_num_seqs": 256}
    fast, plain = (
        scheduler_of(kind, paged(24, policy), Recompute(), **limits, **options) for _ in range(2)
    )
    num_made = 0
    for i, prompt_len in enumerate(LENGTHS):
        for scheduler in (fast, plain):
            scheduler.add(Incoming(i, 0, prompt_len, prompt_ids=tuple(range(prompt_len))))
        for _ in range(2):
            made = fast.whole_prompt.plan()
            num_made += made is not None
            plans = fast.plan() if made is None else made, plain.plan()
            assert made_of(plans[0]) == made_of(plans[1])
            assert state_of(fast) == state_of(plain)
            for scheduler, plan in zip((fast, plain), plans, strict=True):
                scheduler.commit(plan, 1, Results())
    assert num_made >= 4


class Derived(Mixed2023):
    """Another scheduler, which may plan otherwise."""


def test_other_schedulers_make_all_their_plans():
    for kind in (Derived, SeparatePrefill):
        assert scheduler_of(kind, paged(), Recompute()).whole_prompt is None
