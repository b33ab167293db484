"""What a batch reads in a sliding window, against counting every member."""

import random
from functools import partial

from testbed.core.request import Incoming
from testbed.core.sequence import Batch, Sequence
from testbed.sched.window_reads import WindowIndex


def test_reads_equal_a_count_over_the_members():
    rng, batch, size = random.Random(0), Batch(), 20
    index = batch.index("window", partial(WindowIndex, size=size))
    for number in range(2000):
        act = rng.choice(["add", "remove", "extend", "extend"])
        if act == "add":
            seq = Sequence(number, Incoming(number, 0, 1, 1))
            seq.num_slots = rng.randint(1, 30)
            batch.add(seq)
        elif act == "remove" and len(batch):
            batch.remove(rng.choice(list(batch)))
        else:
            batch.extend(rng.randint(1, 3))
        lengths = [seq.num_slots for seq in batch]
        reads, shorter = index.reads(), [length for length in lengths if length < size]
        assert (reads.tokens, reads.growing) == (sum(min(length, size) for length in lengths), len(shorter))
        assert not shorter or reads.steps == size - max(shorter) + 1
