"""A refusal names the option and the value that were given, as fields that programs read."""

import pytest

from testbed import simulate
from testbed.core.errors import InputError
from testbed.memory.capabilities import capabilities_of
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.radix.radix import Radix

POOL = PoolSpec(num_slots=600, max_len=256)
LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
SHORT = {"rate": 1, "duration_s": 1}


class FindsWithoutStoring(Paged):
    def lookup(self, seq):
        raise NotImplementedError


REFUSED = {
    "pages": (lambda: Radix(POOL, block_size=1000), ("block_size", "1000")),
    "all blocks null": (
        lambda: simulate("null_blocks=100000", **SHORT),
        ("null_blocks", "100000"),
    ),
    "no such profiles": (
        lambda: simulate("cost.iterations=nowhere", **SHORT),
        ("cost.iterations", "nowhere"),
    ),
    "half a capability": (
        lambda: capabilities_of(FindsWithoutStoring(POOL)),
        ("policy", "FindsWithoutStoring"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_key_and_the_value_of_a_refusal(case):
    call, named = REFUSED[case]
    with pytest.raises(InputError) as caught:
        call()
    assert (caught.value.key, caught.value.value) == named
