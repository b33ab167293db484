"""Small parts of caches, each by its own statement: order of victims, blocks of a tier, prompts."""

from collections import Counter

import numpy as np
from depth import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refuses

from testbed.core.errors import UnsupportedError
from testbed.core.request import Rows
from testbed.core.slots import Extent, GroupTable
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.eviction.by_session import BySession
from testbed.memory.prefix_cache.prefix_index import Node, PrefixIndex
from testbed.memory.prefix_cache.replay import prompts_of
from testbed.memory.shared_reads import read_again, repeated_of_few, repeated_of_many
from testbed.memory.tiers.lower_tier import LowerTier, Use


def node(name):
    made_node = Node(None, name, hash(name), 0)
    made_node.evictable = True
    return made_node


def test_a_prompt_without_a_session_is_a_session_of_its_own():
    order, (first, second, other) = BySession(), map(node, range(3))
    order.add([first, second])
    order.add([other])
    order.hit([first])
    order.add([first])  # its session, which `second` is of too, is now used after that of `other`
    assert [order.victim() for _ in range(3)] == [other, second, first]


def test_a_tier_takes_its_blocks_from_the_first_on():
    tier, root = LowerTier("dram", 3, 1), PrefixIndex(3).root
    nodes = [Node(root, name, hash(name), 0) for name in range(3)]
    assert [*map(tier.take, [{new: Use()} for new in nodes])] == [
        {new: block} for block, new in enumerate(nodes)
    ]


def test_prompts_of_a_trace_have_the_contents_of_their_whole_blocks():
    rows = Rows(np.array([40]), np.array([1]), prompt_ids=[(7, 8, 9, 10, 11)], tokens_per_id=8)
    (prompt,) = prompts_of(rows, 16)
    assert len(prompt.contents) == 2
    assert prompt.num_blocks == 3


def test_no_reads_are_no_repeated_reads():
    assert read_again([]) == 0


EXTENTS = st.lists(st.builds(Extent, st.integers(0, 30), st.integers(1, 9)), max_size=5)
TABLES = st.builds(GroupTable, st.just(0), EXTENTS, st.integers(0, 6), st.integers(0, 2))


@settings(max_examples=examples(100))
@given(reads=st.lists(st.tuples(st.integers(0, 40), TABLES), min_size=1, max_size=5))
@example([(4, GroupTable(0, [Extent(0, 5), Extent(2, 3)], 0, 1))])  # ends within an extent
def test_a_slot_that_n_sequences_read_counts_n_less_one_times(reads):
    num_reads = Counter[int]()
    for num_tokens, table in reads:
        slots = [start + i for start, length in table.extents for i in range(length)]
        num_reads.update(slots[: max(0, (num_tokens - table.first) * table.slots_per_token)])
    again = num_reads.total() - len(num_reads)
    assert repeated_of_few(reads) == repeated_of_many(reads) == again


def test_a_tier_that_is_neither_device_nor_host_is_refused_by_name():
    policy = Paged(PoolSpec(64, 64, host(64)), block_size=4)
    refuses("tier disk: is none of", policy.move, [], "disk", error=UnsupportedError)
