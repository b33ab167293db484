"""A cache whose new contents are in strands answers as one with a node for each block does."""

from time import process_time

from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from manual_driver import admit, extend, fork, paged, publish, sequence
from releases import UNCACHED_FIRST

from testbed.core.slots import Keep, Refusal
from testbed.memory.prefix_cache.caching_pool import LastUsePool
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.vllm.releases import DEFAULT

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=24).map(tuple)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), PROMPTS, st.integers(1, 24)),
        st.tuples(st.just("compute"), st.integers(0, 9), st.integers(1, 12)),
        st.tuples(st.just("release"), st.integers(0, 9), st.sampled_from([*Keep])),
        st.tuples(st.just("return"), st.integers(0, 9), st.integers(1, 40)),
        st.tuples(st.just("fork"), st.integers(0, 9), st.just(None)),
    ),
    max_size=40,
)


class Served:
    """A policy, its sequences, and those that have given back their slots."""

    def __init__(self, kind, *, strands):
        self.policy = paged(10, OutputCaching, release=kind)
        if not strands:
            self.policy.report_cache(lambda codes, is_findable: None)
        self.running, self.gone, self.num_seqs = [], [], 0

    def admit(self, ids, num_tokens):
        self.num_seqs += 1
        prompt = sequence(self.num_seqs, len(ids), prompt_ids=ids, answer_id=7 << 20)
        return self._begin(prompt, min(num_tokens, len(ids)))

    def compute(self, seq, num_tokens):
        return extend(self.policy, [seq], num_tokens)

    def release(self, seq, keep):
        self.policy.release(seq, keep)
        seq.num_slots = seq.num_stored = 0
        self.running.remove(seq)
        self.gone.append(seq)

    def again(self, seq, num_tokens):
        """A preempted sequence comes back."""
        self.gone.remove(seq)
        seq.num_preemptions += 1
        return self._begin(seq, num_tokens)

    def fork(self, parent):
        self.num_seqs += 1
        child = sequence(self.num_seqs, parent.prompt_len, prompt_ids=parent.prompt_ids)
        fork(self.policy, parent, child)
        self.running.append(child)

    def _begin(self, seq, num_tokens):
        answers = admit(self.policy, [seq], num_tokens)
        if isinstance(answers, Refusal):
            self.gone.append(seq)
            return answers
        seq.num_stored = seq.num_slots
        publish(self.policy, seq)
        self.running.append(seq)
        return answers

    def take(self, name, place, argument):
        """One step, of the sequence at this place, if there is one; its answer."""
        if name == "admit":
            return self.admit(place, argument)
        seqs = self.gone if name == "return" else self.running
        if not seqs:
            return None
        seq = seqs[place % len(seqs)]
        if name == "fork":
            return self.fork(seq) if seq.num_stored >= seq.prompt_len else None
        calls = {"compute": self.compute, "release": self.release, "return": self.again}
        return calls[name](seq, argument)

    def seen(self):
        """Everything that can be asked of the policy."""
        self.policy.check()
        tables = [self.policy.table(seq) for seq in self.running]
        hits = [self.policy.lookup(seq).num_cached(99) for seq in self.gone]
        return tables, hits, self.policy.usage(), self.policy.non_sequence_slots()


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from([DEFAULT, UNCACHED_FIRST]), STEPS)
def test_strands_equal_a_node_for_each_block(kind, steps):
    fast, plain = (Served(kind, strands=strands) for strands in (True, False))
    for number, step in enumerate(steps):
        assert fast.take(*step) == plain.take(*step)
        assert fast.policy.usage() == plain.policy.usage()
        if number % 4 == 3:  # a look-up gives nodes to what it finds
            assert fast.seen() == plain.seen()
    assert fast.seen() == plain.seen()
    assert fast.policy.counters() == plain.policy.counters()


def test_a_strand_whose_beginning_another_sequence_holds_is_given_back_in_parts():
    pool = LastUsePool(6, DEFAULT)
    blocks = pool.take(4)
    pool.publish(pool.index.root, range(4), blocks)
    pool.share(blocks[:2])
    pool.put(blocks)
    assert pool.evictable() == blocks[2:]
    pool.evict(1)
    assert [node.block for node in pool.index.match(range(4))] == blocks[:3]
    pool.put(blocks[:2])
    pool.index.check()
    assert pool.counts() == (3, 3, 0)
    pool.evict(2)
    assert [node.block for node in pool.index.match(range(4))] == blocks[:1]


def test_lists_that_hits_have_emptied_are_forgotten():
    pool = LastUsePool(4, DEFAULT)
    blocks = pool.take(2)
    pool.publish(pool.index.root, range(2), blocks)
    for _ in range(100):
        pool.put(blocks)
        pool.hold(pool.index.match(range(2)))
    assert len(pool.queue) <= 8
    pool.put(blocks)
    pool.index.check()
    assert pool.counts() == (2, 2, 0)


def test_a_hit_takes_out_of_the_queue_what_it_finds_and_nothing_else():
    pool = LastUsePool(10, DEFAULT)
    blocks = pool.take(8)
    pool.publish(pool.index.root, range(8), blocks)
    pool.put(blocks)
    nodes = pool.index.match(range(8))
    pool.hold([*nodes[1:3], *nodes[5:7]])  # two runs of one list
    assert pool.evictable() == [blocks[0], blocks[3], blocks[4], blocks[7]]
    pool.hold([nodes[7], nodes[4], nodes[3]])  # against its order
    assert pool.evictable() == [blocks[0]]
    assert pool.counts() == (2, 1, 0)


def test_a_large_hit_takes_as_long_a_block_as_a_small_one():
    def seconds(num_blocks):
        pool = LastUsePool(num_blocks, DEFAULT)
        pool.publish(pool.index.root, range(num_blocks), blocks := pool.take(num_blocks))
        pool.put(blocks)
        nodes = pool.index.match(range(num_blocks))
        start = process_time()
        pool.hold(nodes)
        return process_time() - start

    several = sum(seconds(8_000) for _ in range(16))
    assert min(seconds(128_000) for _ in range(2)) < 4 * several  # as many blocks
