"""SGLang's scheduler by hand: admission, the closed door, retraction, chunks, the ratio."""

from collections import defaultdict

import pytest
from manual_driver import ManualDriver
from refusals import check_refusal
from tiny import FastMillisecond

import testbed as front
from testbed.core.request import PS, Request
from testbed.core.sequence import Sequence, SequenceGroup
from testbed.engine.simulation import simulate
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.radix.radix import Radix
from testbed.sched.plan import Results
from testbed.sched.preemption import Recompute
from testbed.sched.sglang import SGLang
from testbed.sched.sglang_overlap import OverlappedSGLang
from testbed.sched.sglang_ratio import NewTokenRatio
from testbed.sched.sglang_requests import DeclaredOutputs


class Driven:
    """A scheduler whose iterations end outputs at their lengths; `step` gives the computed tokens
    by request.
    """

    def __init__(self, num_slots, kind=SGLang, policy=Radix, block_size=1, **options):
        pool = PoolSpec(num_slots, 10**6)
        self.policy = policy(pool, block_size=block_size)
        options = {"max_running_requests": 10, "context_length": 10**6, **options}
        self.scheduler = kind(self.policy, Recompute(), **options)
        self.outputs = dict[int, int]()
        self.preempted = []

    def add(self, prompt, output, declared=None, **values):
        number = len(self.outputs)
        request = Request(number, 0, prompt, output, max_new_tokens=declared or output, **values)
        self.outputs[number] = output
        self.scheduler.add(request.incoming)

    def step(self):
        scheduler = self.scheduler
        plan = scheduler.plan()
        self.preempted += [group.request_id for group in plan.preempted]
        tokens = defaultdict(int)
        if plan.decode_seqs:
            for seq in scheduler.state.batch:
                tokens[seq.request_id] = 1
        for chunk in plan.chunks:
            tokens[chunk.group.request_id] += chunk.new
        computing = [*scheduler.running, *[c.group for c in plan.chunks if c.last]]
        stepping = [g for g in computing if g.request.request_id in tokens and not g.todo]
        ended = tuple(
            g.request.request_id
            for g in dict.fromkeys(stepping)
            if g.num_generated + 1 == self.outputs[g.request.request_id]
        )
        scheduler.commit(plan, 1, Results(ended))
        self.policy.check()
        return dict(tokens)


def test_a_request_waits_for_the_declared_future_of_those_that_run():
    driven = Driven(40, schedule_conservativeness=1 / 0.7)
    driven.add(10, 5, declared=10)
    driven.add(10, 5, declared=10)  # 10 + 10 + 1 is not less than 30 free - 9 to come
    assert driven.step() == {0: 10}
    assert driven.step() == {0: 1}


def test_one_slot_more_is_enough():
    driven = Driven(43, schedule_conservativeness=1 / 0.7)
    driven.add(10, 5, declared=10)
    driven.add(10, 5, declared=10)  # less than 43 - (10 + 1 + 10)
    assert driven.step() == {0: 10, 1: 10}


@pytest.mark.parametrize(
    ("total", "page_size", "context", "declared", "most"),
    [
        (100, 1, 50, None, 50 - 1 - 10 - 1),
        (100, 1, 50, 7, 7),
        (100, 1, None, None, 100 - 10 - 1 - 1),
        (60, 16, 50, None, 60 - 16 - 16 - 1),
        (12, 1, None, 9, 0),
    ],
)
def test_a_declared_output_ends_where_context_or_memory_do(
    total, page_size, context, declared, most
):
    """A prompt of 10 tokens. Its pages and one more are kept, as is a token of each length."""
    request = Request(0, 0, 10, 99, max_new_tokens=declared).incoming
    outputs = DeclaredOutputs(total, page_size, context)
    assert outputs.declared(SequenceGroup(request, [Sequence(0, request)])) == most


@pytest.mark.parametrize("kind", [SGLang, OverlappedSGLang])
def test_a_request_whose_output_sglang_would_cut_is_rejected(kind):
    """Of 9 slots SGLang gives a prompt of 2 tokens 5 more, as its own scheduler does."""
    limits = {"max_running_requests": 10, "context_length": 10**6}
    scheduler = kind(Radix(PoolSpec(9, 10**6), 1), Recompute(), **limits)
    requests = [Request(number, 0, 2, 5 + number, max_new_tokens=250) for number in range(2)]
    recorder = simulate(requests, scheduler, FastMillisecond(), 10**6)
    assert (recorder.totals.finished, recorder.totals.generated) == (1, 5)
    assert list(recorder.rejections) == [1]


def test_an_output_that_is_cut_takes_no_step_behind_its_last_token():
    driver, (group,) = driven_by_hand(9, OverlappedSGLang, Radix, [(2, 5)], declared=250)
    plans, outcomes = zip(*[driver.step() for _ in range(5)], strict=True)
    assert [plan.decode_seqs for plan in plans] == [0, 1, 1, 1, 1]
    assert outcomes[4].finished == [group]
    assert driver.ahead.is_idle


def test_a_refusal_closes_the_door_until_a_request_has_left():
    driven = Driven(40)
    driven.add(10, 4, declared=10)
    driven.add(10, 9, declared=18)
    driven.add(1, 1)
    assert driven.step() == {0: 10}  # the second is refused, and the third is not asked
    assert [driven.step() for _ in range(3)] == [{0: 1}] * 3
    assert driven.step() == {1: 10, 2: 1}


def test_the_prompt_that_is_not_complete_goes_first_and_decodes_wait():
    driven = Driven(1000, chunked_prefill_size=8)
    driven.add(4, 5)
    driven.add(10, 5)
    driven.add(3, 5)
    assert driven.step() == {0: 4, 1: 4}
    assert driven.step() == {1: 6, 2: 2}
    assert driven.step() == {2: 1}
    assert driven.step() == {0: 1, 1: 1, 2: 1}


def test_mixed_chunks_share_an_iteration_with_decodes():
    driven = Driven(1000, chunked_prefill_size=8, enable_mixed_chunk=True)
    driven.add(4, 5)
    driven.add(10, 5)
    assert driven.step() == {0: 4, 1: 4}
    assert driven.step() == {0: 1, 1: 6}


def test_the_fewest_generated_then_the_longest_prompt_is_retracted_to_the_end_of_the_queue():
    options = {"schedule_conservativeness": 0.01, "new_token_ratio_decay_steps": 1}
    driven = Driven(40, **options)
    driven.add(10, 14, declared=20)
    driven.add(8, 14, declared=20)
    driven.add(1, 14, declared=20)
    assert driven.step() == {0: 10}
    while not driven.preempted:
        computed = driven.step()
        if len(driven.scheduler.state.waiting) == 3:
            pytest.fail("all wait")
    assert driven.preempted[0] != 0 or computed
    waiting = [group.request_id for group in driven.scheduler.state.waiting]
    assert waiting[-1] == driven.preempted[-1]


def test_the_ratio_decays_and_jumps():
    ratio = NewTokenRatio(1.0, 10)
    ratio.decay(1)
    assert ratio.current == pytest.approx(0.7 - (0.7 - 0.098) / 10)
    ratio.decay(1000)
    assert ratio.current == pytest.approx(0.098)
    ratio.retracted([None] * 2, generated=10, declared=99)
    assert ratio.current == 0.5
    ratio.retracted([None] * 2, generated=10, declared=9)
    assert ratio.current == 1  # no request generates more than it declares
    ratio.reset()
    assert ratio.current == 0.7


def test_longest_prefix_first_computes_what_requests_share_once():
    story = tuple(range(50))
    driven = Driven(1000, schedule_policy="lpm", max_prefill_tokens=70)
    for own in range(3):
        driven.add(60, 3, prompt_ids=(*story, *(1000 * own + i for i in range(100, 110))))
    driven.add(10, 3)
    assert driven.step() == {0: 60}  # with the third, 70 tokens would be reached
    assert driven.step() == {1: 10, 2: 10, 3: 10}


@pytest.mark.parametrize(
    ("order", "places"),
    [
        ("fcfs", [0, 1, 2]),
        ("lof", [1, 2, 0]),
        ("shortest-prefill-first", [1, 2, 0]),
        ("hrrn", [0, 1, 2]),  # none has waited, so by name; then 30 tokens of 10, and of 20
        ("dfs-weight", [0, 1, 2]),  # nothing is cached
    ],
)
def test_the_queue_is_served_in_its_order(order, places):
    driven = Driven(1000, schedule_policy=order, prefill_max_requests=1)
    for prompt, output in ((30, 3), (10, 9), (20, 5)):
        driven.add(prompt, output)
    assert [next(iter(driven.step())) for _ in range(3)] == places


@pytest.mark.parametrize(("low_first", "places"), [(False, [1, 3, 0, 2]), (True, [0, 2, 1, 3])])
def test_the_queue_is_served_by_priority_and_then_as_it_came(low_first, places):
    options = {"enable_priority_scheduling": True, "schedule_low_priority_values_first": low_first}
    driven = Driven(1000, prefill_max_requests=1, **options)
    for priority in (0, 5, 0, 5):
        driven.add(10, 9, priority=priority)
    assert [next(iter(driven.step())) for _ in range(4)] == places


def test_the_queue_is_asked_again_if_a_prompt_had_its_whole_output_at_once():
    """The second request leaves with its only token, and the third is no longer refused."""
    driven = Driven(40)
    driven.add(4, 9)
    assert driven.step() == {0: 4}
    driven.add(16, 1)
    driven.add(16, 2)
    assert driven.step() == {1: 16}
    assert driven.step() == {2: 16}


def test_the_walk_of_the_tree_serves_what_shares_most_first():
    driven = Driven(1000, schedule_policy="dfs-weight", prefill_max_requests=1)
    story = tuple(range(50))
    driven.add(60, 1, prompt_ids=(*story, *range(100, 110)))
    driven.step()
    driven.add(60, 3, prompt_ids=tuple(range(200, 260)))
    for own in (1, 2):
        driven.add(60, 3, prompt_ids=(*story, *range(1000 * own, 1000 * own + 10)))
    assert [driven.step() for _ in range(3)] == [{2: 10}, {3: 10}, {1: 60}]


def test_a_chunk_leaves_room_for_shorter_prompts():
    driven = Driven(1000, schedule_policy="shortest-prefill-first", chunked_prefill_size=16)
    driven.add(100, 3)
    assert driven.step() == {0: 16}
    driven.add(8, 3)
    assert driven.step() == {0: 8, 1: 8}


def test_a_random_order_repeats():
    def served():
        driven = Driven(1000, schedule_policy="random", prefill_max_requests=1)
        for _ in range(8):
            driven.add(10, 9)
        return [next(iter(driven.step())) for _ in range(8)]

    assert served() == served() != list(range(8))


def test_without_a_tree_fixed_outputs_are_admitted_by_their_ends():
    driven = Driven(64, policy=Paged, ignore_eos=True)
    driven.add(10, 10)
    driven.add(10, 20)
    assert driven.step() == {0: 10}  # the longer is put before the shorter in SGLang's list
    assert driven.step() == {1: 10}  # which is sorted anew in every pass


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        (PrefixCaching, {}, ("policy=PrefixCaching", "radix")),
        (Radix, {"schedule_policy": "routing-key"}, ("schedule_policy=routing-key", "fcfs")),
        (Radix, {"retraction_policy": "age"}, ("retraction_policy=age", "priority")),
        (
            Radix,
            {"retraction_policy": "priority"},
            ("retraction_policy=priority", "enable_priority_scheduling"),
        ),
        (Radix, {"chunked_prefill_size": 7, "block_size": 2}, ("chunked_prefill_size=7", "2")),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(policy, options, words):
    check_refusal(words, Driven, 100, policy=policy, **options)


RUN = {"model": "opt-13b", "gpu": "a100-40gb", "policy": "radix", "scheduler": "sglang"}
REQUESTS = [Request(i, i * PS // 100, 50, 20, max_new_tokens=40) for i in range(20)]


def test_a_run_says_what_it_cannot_follow():
    swap = {**RUN, "policy": "paged", "preemption": "swap"}
    check_refusal(("preemption=Swap", "recompute"), front.simulate, trace=REQUESTS, **swap)
    words = "scheduler.ignore_eos=true"
    check_refusal(("ignore_eos=true", "40", "20"), front.simulate, words, trace=REQUESTS, **RUN)
    plain = [request._replace(max_new_tokens=None) for request in REQUESTS]
    check_refusal(("max_new_tokens",), front.simulate, words, trace=plain, **RUN)


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("kind", [SGLang, OverlappedSGLang])
def test_the_plug_in_check_passes(kind):
    name = f"{kind.__module__}:{kind.__name__}"
    assert front.check(name, max_running_requests=6, context_length=200) is None


def driven_by_hand(num_slots, kind, policy, requests, declared=None, **options):
    """A driver with these (prompt, output) requests, and their groups; declared: their number of
    output tokens, if it is another one.
    """
    limits = {"max_running_requests": 10, "context_length": 10**6, **options}
    driver = ManualDriver(kind(policy(PoolSpec(num_slots, 10**6), 1), Recompute(), **limits))
    groups = [
        driver.add(Request(number, 0, prompt, output, max_new_tokens=declared or output))
        for number, (prompt, output) in enumerate(requests)
    ]
    return driver, groups


@pytest.mark.parametrize("policy", [Radix, Paged])
def test_the_only_request_left_ends_where_its_next_token_has_no_slot(policy):
    driver, (group,) = driven_by_hand(12, SGLang, policy, [(10, 4)], schedule_conservativeness=0.3)
    for _ in range(3):
        assert not driver.step()[0].rejected
    plan, outcome = driver.step()
    assert plan.rejected == [group]
    assert "too little memory" in plan.reasons[0]
    assert plan.is_idle
    assert not outcome.finished
    assert driver.state.find(0) is None
    driver.policy.check()
    assert driver.policy.usage().held == 0


def test_a_chunk_that_finds_no_slot_is_retracted_and_begins_anew_when_others_have_ended():
    options = {"chunked_prefill_size": 2, "enable_mixed_chunk": True}
    options |= {"schedule_conservativeness": 0.01, "new_token_ratio_decay_steps": 1}
    driver, groups = driven_by_hand(30, OverlappedSGLang, Radix, [(7, 14), (13, 7)], **options)
    prompts, preempted, ended = [], [], []
    while len(ended) < 2:
        plan, outcome = driver.step()
        prompts += [sum(chunk.new for chunk in plan.chunks if chunk.group is groups[1])]
        preempted += plan.preempted
        ended += outcome.finished
    assert prompts[4:20] == [1] * 12 + [0, 0, 2, 1]  # 10 of 13 are in the tree by then
    assert preempted == [groups[1]]
    assert ended == groups


def test_a_cancelled_prompt_between_two_chunks_leaves_the_budget_to_others():
    driver, groups = driven_by_hand(100, SGLang, Radix, [(20, 3), (6, 3)], chunked_prefill_size=8)
    assert [chunk.new for chunk in driver.step()[0].chunks] == [8]
    driver.scheduler.cancel(groups[0])
    (chunk,) = driver.step()[0].chunks
    assert (chunk.group, chunk.new) == (groups[1], 6)
    driver.policy.check()
    assert driver.policy.usage().held == 6


def test_the_ratio_is_reset_once_the_step_behind_a_stop_token_has_ended():
    """SGLang has no idle pass while it processes that step, in which the next request may come."""
    driver, (group,) = driven_by_hand(100, OverlappedSGLang, Radix, [(5, 3)], declared=50)
    while driver.step()[1].finished != [group]:
        pass
    assert driver.step()[0].decode_seqs == 1
    assert driver.ahead.is_idle
    assert driver.scheduler.ratio.current < 0.7
    assert driver.plan().is_idle
    assert driver.scheduler.ratio.current == 0.7


def test_a_request_is_cancelled_while_its_token_is_on_its_way():
    driver, groups = driven_by_hand(100, OverlappedSGLang, Radix, [(5, 9), (5, 3)])
    plan = driver.plan()
    driver.anticipate(plan)
    assert driver.scheduler.outputs.in_flight == set(groups)
    driver.scheduler.cancel(groups[0])
    assert driver.scheduler.outputs.in_flight == {groups[1]}
    driver.outputs.removed(0)
    driver.conclude(plan)
    finished = [group for _ in range(6) for group in driver.step()[1].finished]
    assert finished == [groups[1]]
    driver.policy.check()
    assert driver.policy.usage().held == 0


def test_without_a_tree_prompts_of_fixed_outputs_come_in_chunks_and_end_by_memory():
    options = {"ignore_eos": True, "chunked_prefill_size": 8}
    driver, groups = driven_by_hand(100, SGLang, Paged, [(12, 3), (10, 2), (90, 9)], **options)
    chunks = []
    for _ in range(4):
        plan, _ = driver.step()
        chunks.append({chunk.group.request_id: chunk.new for chunk in plan.chunks})
    assert chunks == [{0: 8}, {0: 4, 1: 4}, {1: 6}, {}]  # the third never fits beside the others
    assert driver.state.waiting[0] is groups[2]


@pytest.mark.parametrize(
    ("low_first", "priorities", "victim"),
    [(True, (5, 1), 0), (True, (1, 5), 1), (False, (5, 1), 1), (False, (1, 5), 0)],
)
def test_the_least_urgent_is_retracted_first_by_the_policy_of_priorities(
    low_first, priorities, victim
):
    """By tokens and prompts alone it would be request 0 each time."""
    options = {"schedule_conservativeness": 0.01, "new_token_ratio_decay_steps": 1}
    options |= {"enable_priority_scheduling": True, "retraction_policy": "priority"}
    driven = Driven(40, schedule_low_priority_values_first=low_first, **options)
    for prompt_len, priority in zip((10, 8), priorities, strict=True):
        driven.add(prompt_len, 14, declared=20, priority=priority)
    for _ in range(16):
        driven.step()
    assert driven.preempted == [victim]
