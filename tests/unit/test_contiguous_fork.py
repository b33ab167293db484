"""A fork under contiguous memory copies the whole range, as the paper's baselines do."""

from testbed.core.request import Request
from testbed.core.sequence import Sequence
from testbed.core.slots import Copy
from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle
from testbed.memory.policy import PoolSpec


def pair(policy, output_len):
    request = Request(0, 0, 10, output_len, num_seqs=2, beam=True)
    if policy.reads_output_len:
        policy.foresee({0: output_len})
    seqs = [Sequence(i, request.incoming) for i in range(2)]
    policy.admit(seqs, 10)
    for seq in seqs:
        seq.room = seq.stored = 10
    return seqs


def test_the_whole_reservation_is_copied():
    policy = ContiguousMax(PoolSpec(256, 64))
    assert policy.fork(*pair(policy, 5)).copies == (Copy(0, 64, 64),)


def test_what_the_buddy_allocator_rounds_up_is_copied_too():
    policy = ContiguousOracle(PoolSpec(256, 128))
    assert policy.fork(*pair(policy, 30)).copies == (Copy(0, 64, 64),)
