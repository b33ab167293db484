"""Plans that the scheduler need not make: prompts are computed, of one request or several, whole
or in chunks.
"""

from itertools import count

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
        (chunk.group.request_id, chunk.seq.seq_id, *chunk[2:]) for chunk in plan.chunks
    ]
    for name in ("preempted", "rejected"):
        fields[name] = [group.request_id for group in fields[name]]
    return fields


def state_of(scheduler):
    state = scheduler.state
    return (
        [(group.request_id, group.num_cached) for group in state.waiting],
        [(seq.seq_id, seq.num_slots, seq.num_stored, seq.version) for seq in state.batch],
        [*state.running],
        state.refused is None,
        state.policy.usage(),
    )


TOGETHER = [[9, 30, 4], [8, 100, 5], [60, 3, 40, 2], [7], [50, 6, 5, 4]]  # more than a budget of 64


def incoming(request_id, prompt_len):
    num_seqs = 2 if request_id == 7 else 1
    ids = tuple(range(prompt_len))
    return Incoming(request_id, 0, prompt_len, num_seqs=num_seqs, prompt_ids=ids)


@pytest.mark.parametrize(("kind", "policy", "options"), SYSTEMS)
@pytest.mark.parametrize(
    ("arrivals", "budget", "at_once"), [([[n] for n in LENGTHS], 2560, 1), (TOGETHER, 64, 3)]
)
def test_they_are_the_plans_of_the_scheduler(kind, policy, options, arrivals, budget, at_once):
    """Requests come while those before them decode, until the pool of 24 blocks is full."""
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": 7}
    fast, plain = (
        scheduler_of(kind, paged(24, policy), Recompute(), **limits, **options) for _ in range(2)
    )
    num_chunks, request_ids = [], count()
    for prompt_lens in arrivals:
        for prompt_len, request_id in zip(prompt_lens, request_ids, strict=False):
            for scheduler in (fast, plain):
                scheduler.add(incoming(request_id, prompt_len))
        for _ in range(3):
            made = fast.prompt_plans.plan()
            num_chunks += [] if made is None else [len(made.chunks)]
            plans = fast.plan() if made is None else made, plain.plan()
            assert made_of(plans[0]) == made_of(plans[1])
            assert state_of(fast) == state_of(plain)
            for scheduler, plan in zip((fast, plain), plans, strict=True):
                scheduler.commit(plan, 1, Results())
    assert len(num_chunks) >= 2
    assert max(num_chunks) == at_once


@pytest.mark.parametrize("threshold", [0, 7])
@pytest.mark.parametrize("fits_whole", [True, False])
def test_they_go_on_with_a_prompt_in_chunks(threshold, fits_whole):
    """Also if its next chunk preempts it, if prompts hit blocks, and if the pool is full."""
    limits = {"max_num_batched_tokens": 16, "max_num_seqs": 7}
    options = {
        "long_prefill_token_threshold": threshold,
        "scheduler_reserve_full_isl": fits_whole,
    }
    fast, plain = (
        scheduler_of(VllmV1, paged(30, OutputCaching), Recompute(), **limits, **options)
        for _ in range(2)
    )
    num_chunked = num_preempting = 0
    for step in range(90):
        if step % 4 == 0:
            for scheduler in (fast, plain):
                length = 20 + step % 28
                ids = tuple(i if i < 8 else 100 * step + i for i in range(length))
                scheduler.add(Incoming(step, 0, length, prompt_ids=ids))
        made = fast.prompt_plans.plan()
        plans = fast.plan() if made is None else made, plain.plan()
        assert made_of(plans[0]) == made_of(plans[1])
        assert state_of(fast) == state_of(plain)
        num_chunked += made is not None and any(not chunk.last for chunk in made.chunks)
        num_preempting += made is not None and len(made.preempted)
        decoding = [i for i, group in plain.state.running.items() if group.batch]
        results = Results(tuple(decoding[:1]) if step % 5 == 4 else ())
        for scheduler, plan in zip((fast, plain), plans, strict=True):
            scheduler.commit(plan, 1, results)
    assert num_chunked > 9
    assert num_preempting


class Derived(Mixed2023):
    """Another scheduler, which may plan otherwise."""


def test_other_schedulers_make_all_their_plans():
    for kind in (Derived, SeparatePrefill):
        assert scheduler_of(kind, paged(), Recompute()).prompt_plans is None
