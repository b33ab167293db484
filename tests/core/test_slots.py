"""Values at a policy's border, each against its definition slot by slot."""

from random import Random

import pytest

from testbed.core.slots import Copy, Extent, Fixed, Granular, Move, Ops, Stepped, copies_between
from testbed.cost.model import Moved
from testbed.sched.plan import summed


def doubling(limit):
    return Stepped(tuple((size, size) for size in (4, 8, 16, 32, 64, 128) if size <= limit))


FOOTPRINTS = {
    "fixed": (Fixed(48), lambda num_stored: 48),
    "blocks of 1": (Granular(1), lambda num_stored: num_stored),
    "blocks of 16": (Granular(16), lambda num_stored: -(-num_stored // 16) * 16),
    "blocks of 7": (Granular(7), lambda num_stored: -(-num_stored // 7) * 7),
    "doubling": (doubling(128), lambda num_stored: max(4, 1 << (num_stored - 1).bit_length())),
    "a last step": (Stepped(((10, 12), (48, 50))), lambda num_stored: 12 if num_stored <= 10 else 50),
}


@pytest.mark.parametrize("final_len", [1, 2, 7, 8, 10, 11, 16, 17, 33, 47, 48])
@pytest.mark.parametrize("name", FOOTPRINTS)
def test_waste_is_slots_beyond_the_final_length(name, final_len):
    footprint, slots_at = FOOTPRINTS[name]
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
        Ops((Copy(0, 16, 16), Copy(32, 64, 16)), (Move("device", "host", (Copy(0, 0, 16), Copy(16, 16, 16))),)),
        Ops((Copy(0, 16, 4),), (Move("host", "device", (Copy(0, 0, 16),)),), (("pages mapped", 3), ("unmapped", 1))),
        Ops(moves=(Move("device", "host", (Copy(0, 0, 16), Copy(48, 64, 8))),), extra=(("pages mapped", 2),)),
    ]
    copies, moves, extra = summed(ops)
    assert copies == ((4, 1), (16, 2))
    assert moves == (
        Moved("device", "host", 8, 1, 1),
        Moved("device", "host", 16, 3, 2),
        Moved("host", "device", 16, 1, 1),
    )
    assert extra == (("pages mapped", 5), ("unmapped", 1))
    assert summed([]) == ((), (), ())
