"""Tokens that the decodes of an iteration read more than once, against hand arithmetic: by a
constant cost, and by measured ones.
"""

from functools import partial

import pytest
from same_runs import check_both_ways
from tiny import MS

from testbed.core.errors import PlugInError
from testbed.core.layers import KvGroup
from testbed.core.request import PS, Request
from testbed.cost.model import UNBOUNDED, Affine, CostModel, WindowReads, Work
from testbed.engine.simulation import simulate
from testbed.experiments.runs.compose import configured
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.groups.grouped_output_caching import GroupedOutputCaching
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.run.build import build
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.orders import TimeToLive
from testbed.sched.preemption import Recompute, Swap

MAX_LEN = 512
LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 16}
FIRST_PS, AGAIN_PS = 1_000_000, 300_000  # a first read of a token, and one of a token read before
ONE_GROUP = (KvGroup("full", num_layers=4, slot_bytes=64),)
POOL = PoolSpec(1024, MAX_LEN, host(1024))
GROUPS_POOL = PoolSpec(1024, MAX_LEN, layer_bytes=64, num_layers=4, groups=ONE_GROUP)
CACHES = {
    "prefix caching": partial(PrefixCaching, POOL, 8),
    "grouped caching": partial(GroupedCaching, GROUPS_POOL, 8),
}


class PerRead(CostModel):
    """A millisecond an iteration, and so much for each token that decodes read; `works` lists what
    ran.
    """

    def __init__(self):
        self.works = []

    def iteration(self, work):
        self.works.append(work)
        again = work.decode_repeated
        return MS + FIRST_PS * (work.decode_context - again) + AGAIN_PS * again

    def decode(self, work):
        return Affine(self.iteration(work), FIRST_PS * work.decode_seqs, UNBOUNDED)


def served(requests, scheduler, fast_forward=True):
    """The columns of the requests, and the decodes' works."""
    cost = PerRead()
    recorder = simulate(requests, scheduler, cost, MAX_LEN, fast_forward=fast_forward)
    columns = recorder.requests.columns()
    return columns, [work for work in cost.works if work.decode_seqs]


def tpot_ps(columns, request_id):
    """The time from the first token of a request to its last, for each token between them."""
    row = columns["request_id"].tolist().index(request_id)
    decoding_ps = int(columns["finish_ps"][row]) - int(columns["first_token_ps"][row])
    return decoding_ps / (int(columns["output_len"][row]) - 1)


def prompt(num_shared, length, request_id):
    """The first num_shared ids are those of every prompt; the others are the request's own."""
    return tuple(i if i < num_shared else 1000 * request_id + i for i in range(length))


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("cache", CACHES)
def test_retained_slots_of_finished_requests_do_not_speed_up_decodes(cache, fast_forward):
    """Case (a): the second request finds 56 of its 64 tokens, and no request decodes beside it."""
    ids = prompt(64, 64, 0)
    requests = [
        Request(i, arrival_ps=i * PS, prompt_len=64, output_len=9, prompt_ids=ids, session=i)
        for i in range(2)
    ]
    scheduler = ChunkedPrefill(CACHES[cache](), Recompute(), **LIMITS, order=TimeToLive(100.0))
    columns, works = served(requests, scheduler, fast_forward)
    assert scheduler.policy.counters()["hit_tokens"] == 56
    assert scheduler.policy.usage().saved  # both are retained
    mean_context = sum(range(65, 73)) / 8
    assert tpot_ps(columns, 0) == tpot_ps(columns, 1) == MS + FIRST_PS * mean_context
    assert {work.decode_repeated for work in works} == {0}


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("cache", CACHES)
def test_shared_tokens_are_counted_in_tokens_of_a_layer(cache, fast_forward):
    """Case (b): of four layers in one KV group, and 16 of 40 tokens that three decodes share."""
    requests = [
        Request(i, arrival_ps=i * MS, prompt_len=40, output_len=9, prompt_ids=prompt(16, 40, i))
        for i in range(3)
    ]
    scheduler = MixedPrefill(CACHES[cache](), Recompute(), **{**LIMITS, "max_num_seqs": 3})
    _, works = served(requests, scheduler, fast_forward)
    together = [work for work in works if work.decode_seqs == 3]
    assert together
    assert {work.decode_repeated for work in together} == {2 * 16}
    assert {work.decode_repeated for work in works if work.decode_seqs == 2} == {16}
    assert {work.decode_repeated for work in works if work.decode_seqs == 1} == {0}


@pytest.mark.parametrize("cache", CACHES)
def test_prompts_in_prefill_share_nothing_with_decodes(cache):
    """Case (c): one request decodes, while two others share 64 tokens in 5 chunks of their
    prompts.
    """
    alone = Request(0, arrival_ps=0, prompt_len=40, output_len=30)
    shared = [
        Request(i, arrival_ps=2 * MS, prompt_len=120, output_len=1, prompt_ids=prompt(64, 120, i))
        for i in (1, 2)
    ]
    for requests in ([alone], [alone, *shared]):
        scheduler = ChunkedPrefill(CACHES[cache](), Recompute(), **LIMITS)
        columns, works = served(requests, scheduler)
        assert {work.decode_seqs for work in works} == {1}
        mean_context = sum(range(41, 70)) / 29
        assert tpot_ps(columns, 0) == MS + FIRST_PS * mean_context
    assert scheduler.policy.counters()["hit_tokens"] == 64


@pytest.mark.parametrize("fast_forward", [True, False])
def test_decodes_share_a_registered_prefix_and_one_alone_does_not(fast_forward):
    policy = Paged(POOL, 8)
    policy.register_prefix(20)
    requests = [
        Request(i, arrival_ps=0, prompt_len=30, output_len=5 + 5 * i, registered_prefix=20)
        for i in range(3)
    ]
    _, works = served(requests, MixedPrefill(policy, Recompute(), **LIMITS), fast_forward)
    pairs_seen = dict.fromkeys((work.decode_seqs, work.decode_repeated) for work in works)
    assert list(pairs_seen) == [(3, 2 * 16), (2, 16), (1, 0)]  # the two whole blocks of the prefix


@pytest.mark.parametrize("fast_forward", [True, False])
def test_samples_share_whole_blocks_and_copy_the_partial_one(fast_forward):
    """Three samples of a prompt of 20 tokens; the first step copies what is behind its 16th."""
    requests = [Request(0, arrival_ps=0, prompt_len=20, output_len=20, num_seqs=3)]
    scheduler = MixedPrefill(Paged(POOL, 8), Recompute(), **LIMITS)
    _, works = served(requests, scheduler, fast_forward)
    assert {work.decode_repeated for work in works} == {2 * 16}


def test_beams_share_what_their_parents_have_generated():
    """By the tables of every step, which forks change while the beams decode."""
    requests = [
        Request(i, arrival_ps=0, prompt_len=11, output_len=60, num_seqs=3, beam=True)
        for i in range(2)
    ]

    def scheduler():
        return MixedPrefill(Paged(POOL, 4), Recompute(), **LIMITS)

    check_both_ways(requests, scheduler, PerRead(), MAX_LEN)
    repeated = [work.decode_repeated for work in served(requests, scheduler(), False)[1]]
    assert max(repeated) > 2 * 2 * 8 + 20  # more than the whole blocks of both prompts
    assert len({*repeated}) > 5


def test_a_prompt_shares_what_a_decode_beside_it_has_generated():
    """Two decodes share 16 tokens; the third prompt begins with 24 of one's prompt and 24 of its
    answer, which the window has given back by then.
    """
    groups = (*ONE_GROUP, KvGroup("window", num_layers=4, slot_bytes=64, window=8))
    pool = PoolSpec(1024, MAX_LEN, layer_bytes=64, num_layers=8, groups=groups)
    requests = [
        Request(i, 0, 24, output_len=200, prompt_ids=prompt(16, 24, i), answer_id=-1000 * (i + 1))
        for i in range(2)
    ]
    whole = (*requests[0].prompt_ids, *range(-1000 + 24, -1000 + 50))
    requests.append(Request(2, 150 * MS, prompt_len=50, output_len=20, prompt_ids=whole))

    def scheduler():
        return ChunkedPrefill(GroupedOutputCaching(pool, 8), Recompute(), **LIMITS)

    check_both_ways(requests, scheduler, PerRead(), MAX_LEN)
    works = served(requests, scheduler())[1]
    assert {(work.decode_seqs, work.decode_repeated) for work in works} == {(2, 16), (3, 16 + 48)}


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_group_that_comes_back_from_the_host_shares_in_its_first_step(fast_forward):
    """Both groups of two have 16 shared tokens; the pool holds both for part of their outputs."""
    policy = Paged(PoolSpec(112, 64, host(1024)), 8, watermark=0.0)
    requests = [
        Request(i, arrival_ps=0, prompt_len=16, output_len=40, num_seqs=2) for i in range(2)
    ]
    cost_works = served(requests, MixedPrefill(policy, Swap(), **LIMITS), fast_forward)[1]
    back = [work for work in cost_works if work.moves and work.moves[0].target == "device"]
    assert back
    for work in cost_works:
        assert work.decode_repeated == 16 * work.decode_seqs // 2


def measured(overrides, requests, fast_forward=True):
    """The requests served on an H200, as measured, and the cost model."""
    setup = build(configured([*overrides, "gpu=h200", "arrivals.rate=1"]))
    recorder = simulate(
        requests,
        setup.scheduler,
        setup.cost,
        setup.model.max_len,
        pool=setup.pool,
        fast_forward=fast_forward,
    )
    return recorder.requests.columns(), setup.cost


def with_shared_ids(num_seqs, num_shared, num_tokens, output_len):
    """Requests that arrive together, with ids of 64 tokens of which the first are those of all."""
    return [
        Request(
            i,
            arrival_ps=0,
            prompt_len=num_tokens,
            output_len=output_len,
            prompt_ids=ids,
            tokens_per_id=64,
        )
        for i in range(num_seqs)
        for ids in [prompt(num_shared // 64, num_tokens // 64, i + 1)]
    ]


def test_measured_decodes_beside_a_retained_request():
    """Case (a): the answer was 6.73 ms a token in place of 8.81."""
    num_tokens, steps = 120_000, 49
    ids = tuple(range(num_tokens // 64))
    requests = [
        Request(
            i,
            arrival_ps=30 * i * PS,
            prompt_len=num_tokens,
            output_len=steps + 1,
            prompt_ids=ids,
            tokens_per_id=64,
            session=i,
        )
        for i in range(2)
    ]
    lives = [
        "scheduler=chunked",
        "order=time_to_live",
        "scheduler.order.time_to_live_s=100",
        "policy=prefix_caching",
    ]
    lives += ["trace=chat"]  # of sessions, in place of which the requests below are served
    columns, cost = measured(["model=llama-3.1-8b", *lives], requests)
    contexts = range(num_tokens + 1, num_tokens + 1 + steps)
    alone_ps = sum(cost.iteration(Work(1, n, n, num_requests=1)) for n in contexts)
    assert tpot_ps(columns, 0) == tpot_ps(columns, 1) == alone_ps / steps
    assert round(alone_ps / steps / 1e9, 2) == 8.81


@pytest.mark.parametrize("policy", ["prefix_caching", "grouped_caching"])
def test_measured_decodes_of_a_model_with_one_kv_group(policy):
    """Case (b): eight share 1,024 of 16,384 tokens; in slots of all layers it would be 32 times
    that.
    """
    steps = 399
    requests = with_shared_ids(8, 1024, 16_384, steps + 1)
    columns, cost = measured(
        ["model=llama-3.1-8b", "scheduler=separate", f"policy={policy}"], requests
    )
    contexts = range(16_385, 16_385 + steps)
    all_ps = sum(cost.iteration(Work(8, 8 * n, n, 7 * 1024, num_requests=8)) for n in contexts)
    assert tpot_ps(columns, 7) == all_ps / steps  # of the last prompt: all others decode beside it


def test_measured_decode_beside_prompts_that_share():
    """Case (c): one request decodes; in one iteration two prompts share 64 of their tokens."""
    steps = 29
    shared = with_shared_ids(3, 64, 128, 1)[1:]
    requests = [
        Request(0, arrival_ps=0, prompt_len=64, output_len=steps + 1),
        *[r._replace(arrival_ps=1) for r in shared],
    ]
    columns, cost = measured(
        ["model=llama-3.1-8b", "scheduler=mixed", "policy=prefix_caching"], requests
    )
    first, *others = [Work(1, n, n, num_requests=1) for n in range(65, 65 + steps)]
    beside = first._replace(prefill=((128, 0), (64, 64)), num_requests=3)
    assert tpot_ps(columns, 0) == sum(map(cost.iteration, [beside, *others])) / steps


@pytest.mark.parametrize("fast_forward", [True, False])
def test_measured_decodes_of_a_model_with_windows(fast_forward):
    """Case (d): two share 2,048 of 2,112 tokens; half of the layers read 4,096 tokens at most."""
    steps = 199
    requests = with_shared_ids(2, 2048, 2112, steps + 1)
    overrides = ["model=gemma-2-27b", "scheduler=separate", "policy=grouped_caching"]
    columns, cost = measured(overrides, requests, fast_forward)
    works = [
        Work(
            decode_seqs=2,
            decode_context=2 * n,
            decode_max_context=n,
            decode_repeated=2048,
            num_requests=2,
            windows=(WindowReads(size=4096, tokens=2 * n, growing=2, steps=4096 - n + 1),),
        )
        for n in range(2113, 2113 + steps)
    ]
    assert tpot_ps(columns, 1) == sum(map(cost.iteration, works)) / steps


class Forgetful(Paged):
    """Its count leaves one shared token out."""

    def repeated_reads(self, batch, others=()):
        return max(super().repeated_reads(batch, others) - 1, 0)


class WithoutCount(Paged):
    """It knows nothing of shared reads, and its tables are walked."""

    repeated_reads = None


SAMPLES = [Request(0, arrival_ps=0, prompt_len=20, output_len=20, num_seqs=3)]


def test_a_policy_without_a_count_has_that_of_its_tables():
    _, works = served(SAMPLES, MixedPrefill(WithoutCount(POOL, 8), Recompute(), **LIMITS))
    assert {work.decode_repeated for work in works} == {2 * 16}


def test_a_wrong_count_is_refused():
    with pytest.raises(PlugInError, match=r"Forgetful says that decodes read 31 .* it is 32"):
        served(SAMPLES, MixedPrefill(Forgetful(POOL, 8), Recompute(), **LIMITS))


@pytest.mark.parametrize("answer", [-1, 10**6, 1.5, None])
def test_a_count_beyond_what_decodes_read_is_refused(answer):
    policy = Paged(POOL, 8)
    policy.repeated_reads = lambda batch, others=(): answer
    with pytest.raises(PlugInError, match=r"repeated_reads\(\)"):
        served(SAMPLES, MixedPrefill(policy, Recompute(), **LIMITS))
