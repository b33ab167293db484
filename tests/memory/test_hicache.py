"""SGLang's HiCache: what its tree and host pool of release 0.5.23 answer on the same requests, and
runs that are equal step by step and many steps at once.
"""

from functools import partial
from random import Random

import pytest
from manual_driver import LIMITS, ManualDriver, admit, sequence
from refusals import refuses
from shared_beginnings import LONGEST, assert_fast_equals_slow, pool_and_cost, requests_of, served
from tier_slots import tokens_below

from testbed.checks.checking import check
from testbed.core.request import Request
from testbed.memory.offloading.hicache import WRITE_POLICIES, HiCache
from testbed.memory.offloading.host_tree import HostRun
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.radix.leaf_queue import LeafQueue
from testbed.memory.radix.strategies import STRATEGIES, lru
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Recompute
from testbed.sched.sglang import SGLang
from testbed.sched.sglang_overlap import OverlappedSGLang

PAGE = 16
THROUGH, SELECTIVE, BACK = WRITE_POLICIES


def policy_of(num_tokens, host_tokens, writes=THROUGH, page=PAGE, eviction="lru"):
    pool = PoolSpec(num_tokens, 4096, (Tier("dram", host_tokens),))
    return HiCache(pool, page, eviction, writes)


class Server:
    """A scheduler, plan by plan; a write lands before the next plan."""

    def __init__(self, policy, chunk=None):
        self.policy, self.due = policy, []
        scheduler = SGLang(
            policy, Recompute(), max_running_requests=8, chunked_prefill_size=chunk, ignore_eos=True
        )
        self.driver = ManualDriver(scheduler)
        self.num_requests = 0

    def add(self, ids, output_len=1):
        ids = tuple(ids)
        counts = {"prompt_ids": ids, "max_new_tokens": output_len}
        request = Request(self.num_requests, 0, len(ids), output_len, **counts)
        self.num_requests += 1
        return self.driver.add(request)

    def plan(self):
        """The next plan; its prompt tokens, without those of decodes."""
        for move_id in self.due:
            self.policy.landed(move_id)
        plan, _ = self.driver.step()
        self.due = [transfer.move_id for ops in plan.ops for transfer in ops.background]
        self.policy.check()
        return sum(chunk.new for chunk in plan.chunks)

    def serve(self, ids, output_len=1):
        """One request alone, until it has ended and all is written; its computed prompt tokens."""
        group, computed = self.add(ids, output_len), 0
        while self.driver.state.find(group.request_id) is not None:
            computed += self.plan()
        self.plan()
        self.plan()
        return computed

    def moved(self, ids, name="stored", **options):
        """Tokens that serving a request writes or loads."""
        before = self.policy.counters()[f"{name}_blocks"]
        self.serve(ids, **options)
        return int(self.policy.counters()[f"{name}_blocks"] - before) * self.policy.block_size


def prompt(story, num_tokens=160):
    return range(10_000 * story, 10_000 * story + num_tokens)


def below(policy, ids):
    """Tokens of a prompt that the host has beyond those of the device."""
    driver = ManualDriver(SGLang(policy, Recompute(), max_running_requests=1))
    ids = (*ids, 7)
    group = driver.add(Request(0, 0, len(ids), 1, prompt_ids=ids))
    return policy.lookup(group.sequences[0]).num_below(len(ids))["dram"]


def test_write_back_gives_up_copies_of_what_the_device_has_first():
    """SGLang: the third prompt is whole on the host, since the loaded first one gave up its copy.
    The device has four prompts, and two pages that a plan keeps for the next one.
    """
    served = Server(policy_of(672, 656, BACK))
    for story in range(8):
        served.serve(prompt(story))
    assert served.moved(prompt(0), "loaded") == 144
    served.serve(prompt(8))
    assert below(served.policy, prompt(2)) == 160


def test_write_through_skips_what_the_host_has_no_room_for():
    """SGLang writes two prompts of six, none while all copies are of what the device has, and then
    again.
    """
    served = Server(policy_of(672, 336))
    assert [served.moved(prompt(story)) for story in range(6)] == [160, 160, 0, 0, 160, 160]


def test_a_queue_of_leaves_keeps_its_order_when_it_forgets_void_entries():
    gone = set()
    queue = LeafQueue(lru, lambda leaf: leaf not in gone)
    leaves = [HostRun(None, (number,), [], used=number) for number in range(3)]
    for used in range(1200):
        leaves[1].used = used
        for leaf in leaves:
            queue.offer(leaf)
    assert queue.leaves == set(leaves)
    order = []
    for leaf in queue:
        order.append(leaf)
        gone.add(leaf)
    assert order == [leaves[0], leaves[2], leaves[1]]


@pytest.mark.parametrize("writes", WRITE_POLICIES)
def test_a_run_is_written_whole_or_not_at_all(writes):
    served = Server(policy_of(1280, 400, writes))
    for story in (1, 1, 2, 3):
        served.serve(prompt(story, 641))
    assert served.policy.counters()["stored_blocks"] == 0


def test_selective_writes_with_the_second_sequence_what_was_computed_once():
    """SGLang: 160 tokens of a prompt of whole pages, whose last page no hit contains."""
    served = Server(policy_of(640, 1296, SELECTIVE))
    assert [served.moved(prompt(1)) for _ in range(3)] == [0, 160, 0]


@pytest.mark.parametrize("chunk", [None, 32])
def test_a_sequence_counts_once_whatever_its_chunks_and_its_answer(chunk):
    served = Server(policy_of(640, 1296, SELECTIVE), chunk)
    assert served.moved(prompt(1), output_len=40) == 0


def test_answers_are_written():
    served = Server(policy_of(640, 1296))
    assert served.moved(prompt(1), output_len=41) == 192


def test_a_later_answer_is_written_behind_all_that_lacks_a_copy():
    """The third prompt had no room; with what is behind it, both are written."""
    served = Server(policy_of(672, 368))
    for story in (1, 2, 3, 4, 5):
        served.serve(prompt(story))
    assert served.moved((*prompt(3), *prompt(9, 32))) == 192


@pytest.mark.parametrize(("num_below", "loaded"), [(9, 0), (10, 10), (16, 16)])
def test_ten_tokens_are_loaded_and_nine_are_not(num_below, loaded):
    served = Server(policy_of(64, 640, page=1))
    served.serve(prompt(1, num_below))
    served.serve(prompt(2, 60))
    assert below(served.policy, prompt(1, num_below)) == num_below
    assert served.moved((*prompt(1, num_below), 5, 6), "loaded") == loaded


def test_a_loaded_prompt_is_computed_in_the_same_plan():
    served = Server(policy_of(320, 1296))
    served.serve(prompt(1))
    served.serve(prompt(2, 300))
    served.add(prompt(1))
    assert served.plan() == 16
    assert served.policy.counters()["loaded_blocks"] == 9


def test_what_is_written_is_neither_cached_nor_free():
    served = Server(policy_of(320, 1296))
    served.add(prompt(1))
    served.plan()
    used = served.policy.usage()
    assert (used.held, used.cached, used.in_transit) == (0, 0, 160)
    served.plan()
    served.plan()
    used = served.policy.usage()
    assert (used.held, used.cached, used.in_transit) == (0, 160, 0)


def test_a_written_page_that_a_sequence_computes_again_is_in_transit():
    """The sequence has a page of its own, which the tree takes once the write has ended."""
    served = Server(policy_of(320, 1296))
    served.add(prompt(1))
    served.plan()
    seq = sequence(1, 160, prompt_ids=tuple(prompt(1)))
    admit(served.policy, [seq], 160)
    served.policy.publish(seq, 160)
    used = served.policy.usage()
    assert (used.held, used.free, used.in_transit) == (160, 144, PAGE)
    (page,) = served.policy.non_sequence_slots().in_transit
    assert page.length == PAGE


def test_a_request_waits_for_writes_that_lock_the_pool():
    served = Server(policy_of(320, 1296))
    served.add(prompt(1, 250))
    served.plan()
    served.add(prompt(2, 250))
    assert [served.plan(), served.plan()] == [0, 250]


def test_what_sglang_does_not_have_is_refused():
    refuses("one tier below", HiCache, PoolSpec(64, 64))
    refuses("hicache_write_policy", policy_of, 64, 64, "write_around")


def test_a_scheduler_that_loads_nothing_is_refused():
    refuses("loads what is admitted", ChunkedPrefill, policy_of(64, 64), Recompute(), **LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("writes", WRITE_POLICIES)
def test_it_keeps_the_contract_in_pools_with_the_one_tier_that_it_takes(writes):
    """Its short runs are served by SGLang's schedulers, and load."""

    class Chosen(HiCache):
        def __init__(self, pool, block_size=8):
            super().__init__(pool, block_size, hicache_write_policy=writes)

    assert check(Chosen, num_examples=2, num_slots=131, max_len=80) is None
    assert check(Chosen) is None


def run(seed, fast_forward):
    random = Random(seed)
    page = random.choice([1, 8])
    pool, cost = pool_and_cost(random)
    strategy = random.choice(STRATEGIES)
    config = {"threshold": 24, "next_prompt_estimate": 8} if strategy == "tlru" else None
    policy = HiCache(pool, page, strategy, random.choice(WRITE_POLICIES), config)
    chunk = random.choice([None, 16, 64])
    scheduler = random.choice([SGLang, OverlappedSGLang])(
        policy,
        Recompute(cost),
        max_running_requests=8,
        chunked_prefill_size=chunk,
        enable_mixed_chunk=chunk == 64,
        schedule_policy=random.choice(["fcfs", "lpm"]),
        schedule_conservativeness=random.choice([0.1, 1.0]),
        ignore_eos=random.random() < 0.5,
    )
    most = min(pool.num_slots, LONGEST) - 2 * page
    requests = requests_of(random, pool.num_slots, declared=True)
    fitting = [request for request in requests if request.final_len <= most]
    return served(fitting, scheduler, cost, pool, fast_forward)


@pytest.mark.parametrize("seed", [*range(6), 219])  # 219 ends a request that lacks memory
def test_fast_equals_slow(seed, golden):
    assert_fast_equals_slow(partial(run, seed), golden, f"hicache {seed}")


def test_pages_on_the_host_are_listed_while_they_are_written_and_then():
    served = Server(policy_of(672, 656))
    served.add((*prompt(0), 7), output_len=9)
    served.plan()
    served.plan()
    stored, written = tokens_below(served.policy, 656)
    assert (stored, written) in ((0, 160), (160, 0))
    served.plan()
    served.plan()
    assert tokens_below(served.policy, 656) == (160, 0)


def test_prompts_without_tokens_are_of_their_own():
    served = Server(policy_of(672, 656))
    for number in range(2):
        served.driver.add(Request(number, 0, 160, 1, max_new_tokens=1))
        assert served.plan() == 160
    served.plan()
    served.plan()
    assert tokens_below(served.policy, 656) == (320, 0)
