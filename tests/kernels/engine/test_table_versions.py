"""The engine reads a table again if the version of its sequence was raised; without any one of
the raises a sequence reads or writes slots of others, which the debug mode notices.
"""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402
from example_policy import Slabs  # noqa: E402
from unraised import unraised  # noqa: E402

from testbed.core.sequence import Batch, Sequence  # noqa: E402
from testbed.core.slots import Copy, Grant, Ops, Refusal  # noqa: E402
from testbed.kernels.engine.slot_checker import SlotError  # noqa: E402
from testbed.memory.capabilities import Capabilities  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.radix.radix import Radix  # noqa: E402
from testbed.sched import group_slots, state  # noqa: E402
from testbed.sched.chunked import ChunkedPrefill  # noqa: E402
from testbed.sched.preemption import Recompute, RecomputeTail, Swap  # noqa: E402
from testbed.sched.scheduler import Scheduler  # noqa: E402
from testbed.sched.sglang import SGLang  # noqa: E402

LONG = [(9, 20), (6, 25), (11, 30), (7, 22), (13, 18)]


class Relocating(Slabs):
    """Every extension copies the first slab of each member to a free one."""

    def __init__(self, pool):
        super().__init__(pool, slab_size=32)

    def extend(self, batch, num_tokens=1):
        if isinstance(answer := super().extend(batch, num_tokens), Refusal):
            return answer
        copies = []
        for seq in batch:
            slabs = self.slabs[seq.seq_id]
            copies.append(Copy(slabs[0] * 32, self.free[0] * 32, 32))
            self.free.append(slabs[0])
            slabs[0] = self.free.pop(0)
        return Grant(0, Ops(tuple(copies)))


def serve(requests, policy, rule=Recompute, slots=64, scheduler=tiny.mixed):
    """Serve in the debug mode; the outputs."""
    made = partial(scheduler, preemption=rule())
    engine = tiny.engine("llama", policy, made, tiny.pool(slots, 512))
    records = engine.serve(requests)
    assert records.recorder.totals.finished == len(requests)
    assert len(engine.runner.tables) == 0
    return records.outputs


def chunked(policy, preemption):
    return ChunkedPrefill(policy, preemption, max_num_batched_tokens=7, max_num_seqs=16)


def sglang(policy, preemption):
    return SGLang(policy, preemption, max_running_requests=16)


def of_one_prompt():
    """While one request decodes, three come that compute one prompt in one iteration; two of them
    give their blocks back, which the last two requests take.
    """
    ids, lengths = tuple(range(3, 33)), [(5, 30), (30, 12), (30, 9), (30, 14), (13, 20), (9, 25)]
    requests = tiny.requests(lengths)
    same = [r._replace(prompt_ids=ids, arrival_ps=10**12) for r in requests[1:4]]
    requests[1:4] = same
    return [r._replace(max_new_tokens=r.output_len) for r in requests]


of_eight = partial(Paged, block_size=8)
preempted = partial(serve, tiny.requests(LONG), of_eight)
tails = partial(serve, tiny.requests(LONG), of_eight, rule=RecomputeTail)
swapped = partial(serve, tiny.requests(LONG), of_eight, rule=Swap)
searched = partial(serve, tiny.requests(LONG[:3], num_seqs=3, beam=True), slots=512)
doubles = partial(serve, of_one_prompt(), partial(Radix, block_size=4), scheduler=sglang, slots=256)
relocated = partial(serve, tiny.requests([(30, 3)]), Relocating, scheduler=chunked, slots=256)


def of_itself(seq, *args, **counts):
    return [(seq, "_changes")]


def of_moved(capabilities, seqs, tier):
    return [(seq, "_changes") for seq in seqs]


def of_batch(scheduler, plan):
    return [(scheduler.state.batch, "changes")]


def of_extended(policy, seqs, num_tokens):
    return [(seq, "_changes") for seq in seqs]


def of_held(radix, held):
    return [(held.seq, "_changes")]


@pytest.mark.parametrize(
    ("owner", "name", "versions_of", "scenario"),
    [
        (Sequence, "set_counts", of_itself, preempted),
        (Sequence, "set_counts", of_itself, tails),
        (Capabilities, "move", of_moved, swapped),
        (Scheduler, "step", of_batch, partial(searched, partial(Paged, block_size=4))),
        (group_slots, "extend_to", of_extended, relocated),
        (Radix, "_give_up_own", of_held, doubles),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_change_that_raises_no_version_is_noticed(
    monkeypatch, owner, name, versions_of, scenario
):
    scenario()
    function = unraised(getattr(owner, name), versions_of)
    monkeypatch.setattr(owner, name, function)
    if owner is group_slots:
        monkeypatch.setattr(state, name, function)
    with pytest.raises(SlotError):
        scenario()


def test_a_version_is_never_lower_than_before():
    seq, batch = (Sequence(0, tiny.requests([(8, 4)])[0].incoming), Batch())
    versions = [seq.version]
    seq.set_counts(num_slots=8, num_stored=8)
    versions.append(seq.version)
    batch.changes = 5
    batch.add(seq)
    versions.append(seq.version)
    batch.changes += 1
    versions.append(seq.version)
    batch.remove(seq)
    versions.append(seq.version)
    assert versions == sorted(versions)
    assert versions[3] > versions[2]
    assert versions[4] == versions[3]
