"""Values at a policy's border, slot by slot; the batch's clock; bytes of a token, of the weights
and of the pool.
"""

from dataclasses import replace
from random import Random

import pytest
from manual_driver import sequence
from refusals import refuses

from testbed.core.request import Incoming, Request
from testbed.core.sequence import Batch, disband, passing_batch
from testbed.core.slots import Copy, Extent, Fixed, Granular, Move, Ops, Stepped, copies_between
from testbed.core.specs import GIB, GpuSpec, ModelSpec, ServerSpec
from testbed.cost.model import Moved
from testbed.sched.plan import summed


def doubling(limit):
    return Stepped(tuple((size, size) for size in (4, 8, 16, 32, 64, 128) if size <= limit))


FOOTPRINTS = {
    "fixed": (Fixed(48), lambda num_stored: 48, [(0, 38)]),
    "blocks of 1": (Granular(1), lambda num_stored: num_stored, []),
    "blocks of 16": (Granular(16), lambda num_stored: -(-num_stored // 16) * 16, [(1, 6)]),
    "blocks of 7": (Granular(7), lambda num_stored: -(-num_stored // 7) * 7, [(8, 4)]),
    "doubling": (
        doubling(128),
        lambda num_stored: max(4, 1 << (num_stored - 1).bit_length()),
        [
            (9, 6),
            (17, 16),
            (33, 32),
            (65, 64),
        ],
    ),
    "a last step": (
        Stepped(((10, 12), (48, 50))),
        lambda num_stored: 12 if num_stored <= 10 else 50,
        [
            (0, 2),
            (11, 38),
        ],
    ),
}


@pytest.mark.parametrize("final_len", [1, 2, 7, 8, 10, 11, 16, 17, 33, 47, 48])
@pytest.mark.parametrize("name", FOOTPRINTS)
def test_waste_is_slots_beyond_the_final_length(name, final_len):
    footprint, slots_at, of_ten = FOOTPRINTS[name]
    assert footprint.waste(10) == of_ten
    events = footprint.waste(final_len)
    assert all(slots > 0 for _, slots in events)
    for num_stored in range(1, final_len + 1):
        wasted = sum(slots for from_len, slots in events if from_len <= num_stored)
        assert wasted == max(0, slots_at(num_stored) - final_len)


def slots(extents):
    return [start + i for start, length in extents for i in range(length)]


def cut(rng, order, num_slots):
    """Extents over these slot numbers, of any lengths, some of them empty."""
    extents = [Extent(0, 0)]
    while len(slots(extents)) < num_slots:
        extents.append(Extent(next(order) * 100, rng.randrange(8)))
    return extents


@pytest.mark.parametrize("seed", range(50))
def test_copies_between_extents_move_every_slot(seed):
    rng = Random(seed)
    order, num_slots = iter(rng.sample(range(400), 400)), rng.randrange(40)
    source, target = cut(rng, order, num_slots), cut(rng, order, num_slots)
    copies = copies_between(source, target, num_slots)
    pairs = [(copy.src + i, copy.dst + i) for copy in copies for i in range(copy.length)]
    assert pairs == list(zip(slots(source), slots(target), strict=False))[:num_slots]
    assert all(copy.length > 0 for copy in copies)


def test_operations_are_summed_by_length_tier_and_name():
    ops = [
        Ops(
            (Copy(0, 16, 16), Copy(32, 64, 16)),
            (Move("device", "host", (Copy(0, 0, 16), Copy(16, 16, 16))),),
        ),
        Ops(
            (Copy(0, 16, 4),),
            (Move("host", "device", (Copy(0, 0, 16),)),),
            (("pages mapped", 3), ("unmapped", 1)),
        ),
        Ops(
            moves=(Move("device", "host", (Copy(0, 0, 16), Copy(48, 64, 8))),),
            extra=(("pages mapped", 2),),
        ),
    ]
    copies, moves, extra = summed(ops)
    assert copies == ((4, 1), (16, 2))
    out, back = (
        Moved(source="device", target="host", length=16, num_transfers=3, num_runs=2),
        Moved(source="host", target="device", length=16, num_transfers=1, num_runs=1),
    )
    assert moves == (
        Moved(source="device", target="host", length=8, num_transfers=1, num_runs=1),
        out,
        back,
    )
    assert extra == (("pages mapped", 5), ("unmapped", 1))
    assert summed([]) == ((), (), ())


def unbatched(seq_id, num_slots, num_stored):
    seq = sequence(seq_id, num_slots)
    seq.num_slots, seq.num_stored = num_slots, num_stored
    return seq


@pytest.mark.parametrize("seed", range(5))
def test_batch_counts_equal_counts_per_member(seed):
    rng, batch, expected, members = Random(seed), Batch(), {}, {}
    for turn in range(600):
        choice = rng.random()
        if choice < 0.35:
            seq = unbatched(
                turn, num_slots := rng.randrange(1, 60), num_stored := rng.randrange(num_slots + 1)
            )
            batch.add(seq)
            members[turn], expected[turn] = seq, [num_slots, num_stored]
        elif choice < 0.6 and members:
            seq_id = rng.choice(list(members))
            seq = members.pop(seq_id)
            batch.remove(seq)
            assert [seq.num_slots, seq.num_stored] == expected.pop(seq_id)
            if rng.random() < 0.5:  # it comes back with what it has
                batch.add(seq)
                members[seq_id], expected[seq_id] = seq, [seq.num_slots, seq.num_stored]
        elif choice < 0.8:
            batch.extend(more := rng.randrange(4))
            expected = {
                seq_id: [num_slots + more, num_stored]
                for seq_id, (num_slots, num_stored) in expected.items()
            }
        else:
            batch.advance(more := rng.randrange(4))
            expected = {
                seq_id: [num_slots, num_stored + more]
                for seq_id, (num_slots, num_stored) in expected.items()
            }
        slot_counts = [num_slots for num_slots, _ in expected.values()]
        assert {
            seq_id: [seq.num_slots, seq.num_stored] for seq_id, seq in members.items()
        } == expected
        counted = batch.max_context_len, batch.context, len(batch)
        assert counted == (max(slot_counts, default=0), sum(slot_counts), len(slot_counts))


def test_request_has_plain_defaults():
    request = Request(3, arrival_ps=4, prompt_len=5, output_len=6)
    incoming = Incoming(3, arrival_ps=4, prompt_len=5)
    assert request.incoming == incoming
    assert request[3:] == (request.output_len, *incoming[3:])


def test_member_counts_cannot_be_set_directly():
    batch, seq = Batch(), unbatched(0, 4, 4)
    batch.add(seq)
    for count in ("num_slots", "num_stored"):
        refuses("is set by its batch", setattr, seq, count, 5, error=ValueError)


def test_disbanded_temporary_batch_updates_its_members():
    seqs = [unbatched(i, 4 + i, 3) for i in range(3)]
    batch = passing_batch(seqs)
    batch.extend(2)
    batch.advance(2)
    disband(batch)
    assert [(seq.num_slots, seq.num_stored, seq.batch) for seq in seqs] == [
        (6, 5, None),
        (7, 5, None),
        (8, 5, None),
    ]


# 3 layers; 2 * 10 * 4 * 5 for queries and outputs, 2 * 10 * 2 * 5 for K and V, 3 * 10 * 20 for the
# MLP; 7 words of 10
TINY = ModelSpec(
    "tiny",
    3,
    10,
    num_heads=4,
    num_kv_heads=2,
    head_size=5,
    ffn_size=20,
    ffn_matrices=3,
    vocab_size=7,
    max_len=64,
)
WEIGHTS = 3 * (400 + 200 + 600) + 70


def server(num_gpus, memory_bytes=10 * GIB, **options):
    return ServerSpec(
        "server", GpuSpec("gpu", memory_bytes, 1e9, 1e12, 1e9, 1e9), num_gpus, **options
    )


def test_kv_bytes_per_token_count_kv_heads():
    assert TINY.kv_bytes_per_token == 2 * 3 * 2 * 5 * 2
    opt = ModelSpec("opt-13b", 40, 5120, 40, 40, 128, 20480, 2, 50272, 2048, tied_embedding=True)
    assert opt.kv_bytes_per_token == 800 * 1024  # section 3
    assert opt.weight_bytes == pytest.approx(26e9, rel=0.03)  # Table 1 says 26 GB


def test_weight_count_includes_tied_embedding_once():
    tied = replace(TINY, tied_embedding=True)
    assert (TINY.linear_params, TINY.num_params, tied.num_params) == (
        WEIGHTS,
        WEIGHTS + 70,
        WEIGHTS,
    )
    assert TINY.weight_bytes == 2 * (WEIGHTS + 70)


@pytest.mark.parametrize("num_gpus", [1, 2, 4])
def test_pool_is_memory_left_by_weights_and_workspace(num_gpus):
    usable = num_gpus * (5 - 1.5) * GIB
    assert (
        server(num_gpus, memory_utilization=0.5, workspace_gib=1.5).kv_pool_bytes(TINY)
        == usable - TINY.weight_bytes
    )
    assert server(num_gpus, kv_memory_gib={"tiny": 2.5}).kv_pool_bytes(TINY) == 2.5 * GIB


def test_pool_has_at_least_one_whole_block():
    small = server(1, kv_memory_gib={"tiny": 101 * 120 / GIB})
    assert (small.kv_slots(TINY), small.kv_slots(TINY, 16), small.kv_slots(TINY, 100)) == (
        101,
        96,
        100,
    )
    refuses("leaves no memory", small.kv_slots, TINY, 102)
