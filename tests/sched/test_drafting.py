"""Speculative decoding: slots for drafts, what is accepted, and what comes back."""

from itertools import pairwise

import numpy as np
import pytest
from refusals import refuses
from tiny import OneMillisecond

from testbed.api import simulate as run
from testbed.core.request import PS, Request
from testbed.engine.simulation import simulate
from testbed.experiments.runs.front_end import HydraFrontEnd
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.run.build import build
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.speculation.acceptance import Constant, Markov, PerPosition
from testbed.speculation.draft_model import DraftModel
from testbed.speculation.drafter_memory import drafter_memory
from testbed.speculation.heads import Heads
from testbed.speculation.ngram import NGram
from testbed.vllm.releases import V0_19, V0_33

MAX_LEN = 64
LIMITS = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
}


def scheduler_of(speculation, num_blocks=40, kind=VllmV1, policy=Paged, **options):
    """A scheduler over a paged pool of blocks of 4 tokens."""
    memory = policy(PoolSpec(4 * num_blocks, MAX_LEN, host(0)), block_size=4, watermark=0)
    limits = LIMITS | options
    return kind(memory, Recompute(), drafter=speculation, max_len=MAX_LEN, **limits)


class NotedAdmissions(Paged):
    """Notes for how many tokens sequences are admitted."""

    def __init__(self, *args, **parameters):
        super().__init__(*args, **parameters)
        self.admitted = []

    def admit(self, seqs, num_tokens):
        self.admitted.append(num_tokens)
        return super().admit(seqs, num_tokens)


@pytest.mark.parametrize(
    ("chunk", "release", "ends"), [(3, V0_33, True), (4, V0_33, False), (3, V0_19, False)]
)
def test_a_chunk_that_cuts_the_rows_of_drafts_ends_a_server(chunk, release, ends):
    """As vLLM 0.28 and 0.33 end, by `assert num_new_tokens == 1 + self.num_spec_tokens`."""
    asked = {"release": release, "long_prefill_token_threshold": chunk}
    drafter = NGram(3, acceptance=Constant(0.5))
    if ends:
        refuses("AssertionError", scheduler_of, drafter, **asked)
    else:
        assert scheduler_of(drafter, **asked).limits.max_chunk_tokens == chunk


def served(scheduler, *lengths):
    """The run of requests of these (prompt, output) lengths that come together."""
    requests = [Request(i, 0, prompt, output) for i, (prompt, output) in enumerate(lengths)]
    acceptance = scheduler.drafter.acceptance
    return simulate(requests, scheduler, OneMillisecond(), MAX_LEN, acceptance=acceptance)


def plans_of(scheduler):
    """The scheduler's plans, which a run appends to the list."""
    plans, plan = [], scheduler.plan

    def noted():
        plans.append(plan())
        return plans[-1]

    scheduler.plan = noted
    return plans


@pytest.mark.parametrize(("rate", "num_iterations"), [(0.0, 12), (1.0, 4)])
def test_accepted_drafts_are_output_tokens(rate, num_iterations):
    """An output of 12: 1 by the prompt, then 1 or 1 + 3 a step, the last of which is cut."""
    scheduler = scheduler_of(NGram(3, acceptance=Constant(rate)))
    recorder = served(scheduler, (10, 12))
    assert recorder.totals.iterations == num_iterations
    assert recorder.totals.generated == 12
    assert scheduler.policy.usage().held == 0


def test_a_chunk_limits_a_decode_and_its_drafts_too():
    """An output of 12, all of whose drafts are accepted: 1 by the prompt, then 3 a step."""
    drafter = NGram(3, acceptance=Constant(1.0))
    scheduler = scheduler_of(drafter, release=V0_19, long_prefill_token_threshold=3)
    plans = plans_of(scheduler)
    served(scheduler, (3, 12))
    assert [draft.num_drafts for plan in plans for draft in plan.drafts] == [2, 2, 2, 2]


def test_asynchronous_run_takes_no_step_that_it_knows_to_be_useless():
    """Outputs of 2: no step is planned behind the one that brings the last token."""
    scheduler = scheduler_of(Heads(3), kind=AsyncVllmV1, ignore_eos=True)
    assert served(scheduler, (10, 2)).totals.iterations == 2
    scheduler = scheduler_of(Heads(3), kind=AsyncVllmV1, ignore_eos=False)
    assert served(scheduler, (10, 2)).totals.iterations == 3


@pytest.mark.parametrize(("stop_ms", "num_steps"), [(3, 2), (1000, 3)])
def test_drafts_that_are_accepted_come_with_the_next_token(stop_ms, num_steps):
    """An output of 12 of a request that is finished, or not yet: 1 by the prompt, then 4, 4, 3."""
    scheduler = scheduler_of(NGram(3, acceptance=Constant(1.0)))
    acceptance, stop_ps = scheduler.drafter.acceptance, stop_ms * PS // 1000
    requests = [Request(0, arrival_ps=0, prompt_len=10, output_len=12)]
    options = {"stop_ps": stop_ps, "acceptance": acceptance}
    recorder = simulate(requests, scheduler, OneMillisecond(), MAX_LEN, **options)
    gaps_ps = sorted(np.repeat(*recorder.token_gaps().runs.listed()))
    tokens_behind_the_first = [4, 8, 11][num_steps - 1]
    assert gaps_ps[-num_steps:] == [PS // 1000] * num_steps
    assert len(gaps_ps) == tokens_behind_the_first
    assert not any(gaps_ps[:-num_steps])


def test_the_end_of_a_prefix_is_copied_for_each_request_beside_drafts():
    """A prefix of 5 tokens in blocks of 4: its last token goes to a block of each request."""
    scheduler = scheduler_of(NGram(3, acceptance=Constant(1.0)))
    scheduler.policy.register_prefix(5)
    requests = [Request(i, 0, prompt_len=9, output_len=4, registered_prefix=5) for i in range(2)]
    acceptance = scheduler.drafter.acceptance
    recorder = simulate(requests, scheduler, OneMillisecond(), MAX_LEN, acceptance=acceptance)
    assert recorder.totals.copies == 2


def slots_after_a_rejected_step(speculation):
    """Slots of a sequence with 10 tokens when its first 3 drafts were rejected."""
    scheduler, slots = scheduler_of(speculation), []
    commit = scheduler.commit

    def noted(plan, steps, results):
        outcome = commit(plan, steps, results)
        groups = scheduler.state.running.values()
        slots.append([group.sequences[0].num_slots for group in groups])
        return outcome

    scheduler.commit = noted
    served(scheduler, (10, 4))
    return slots[1]


def test_rejected_slots_stay_or_return_with_the_results():
    """A step has its token and 3 drafts; heads store 3 tokens ahead of these."""
    reject = Constant(0.0)
    assert slots_after_a_rejected_step(NGram(3, acceptance=reject)) == [14]
    assert slots_after_a_rejected_step(Heads(3, acceptance=reject)) == [17]
    assert slots_after_a_rejected_step(Heads(3, keeps_slots=False, acceptance=reject)) == [11]


def test_slots_for_drafts_preempt_where_a_plain_decode_fits():
    """Two prompts of 7 in five blocks of 4: the second block of each has one slot left."""
    plans = plans_of(drafting := scheduler_of(NGram(3), num_blocks=5))
    served(drafting, (7, 6), (7, 6))
    assert [len(plan.preempted) for plan in plans[:2]] == [0, 1]
    plans = plans_of(plain := scheduler_of(NGram(3, off_above=1), num_blocks=5))
    served(plain, (7, 6), (7, 6))
    assert [len(plan.preempted) for plan in plans[:2]] == [0, 0]


def test_no_drafts_above_the_load_of_off_above():
    scheduler = scheduler_of(NGram(3, off_above=2, acceptance=Constant(1.0)))
    plans = plans_of(scheduler)
    served(scheduler, (4, 9), (4, 30), (4, 30))
    by_size = {len(plan.drafts): {d.num_drafts for d in plan.drafts} for plan in plans[1:]}
    assert by_size[3] == {0}
    assert by_size[2] == {3}


def test_drafts_end_at_the_longest_sequence():
    scheduler = scheduler_of(Heads(5, acceptance=Constant(1.0)))
    plans = plans_of(scheduler)
    served(scheduler, (50, 14))
    assert [plan.drafts[0].num_drafts for plan in plans if plan.drafts] == [5, 5, 0]


def test_acceptance_is_the_requests_and_not_the_policys():
    """Preemptions, order and drafts of others change nothing in what is accepted."""
    markov = Markov(seed=3)
    shown = [markov.accepted(5, position, 4) for position in range(50)]
    other = Markov(seed=3)
    other.accepted(4, 70, 4)
    assert [other.accepted(5, position, 4) for position in reversed(range(50))] == shown[::-1]
    assert shown != [Markov(seed=4).accepted(5, position, 4) for position in range(50)]


def test_seeds_draw_the_first_passage_of_a_request_too():
    """All requests begin in hard passages as often as stated, others by another seed."""
    begin = {"easy_rate": 1.0, "hard_rate": 0.0, "to_hard": 0.2, "to_easy": 0.2}
    chains = [Markov(**begin, seed=seed) for seed in range(2)]
    first, second = ([chain.accepted(n, 0, 1) for n in range(500)] for chain in chains)
    assert np.mean(first) == pytest.approx(0.5, abs=0.07)
    assert np.mean([a == b for a, b in zip(first, second, strict=True)]) < 0.6


@pytest.mark.parametrize("rates", [[], [0.3, 0.5]])
def test_rates_by_place_never_grow(rates):
    refuses("acceptance.rates", PerPosition, rates)


def test_a_chain_that_stays_where_it_begins_is_refused():
    refuses("acceptance.to_hard", Markov, to_hard=0.0, to_easy=0.0)


def test_passages_of_one_request_begin_and_end_as_often_as_stated():
    """Drafts of one token, all accepted in easy passages and none in hard ones."""
    chain = Markov(easy_rate=1.0, hard_rate=0.0, to_hard=0.1, to_easy=0.3)
    is_hard = [not chain.accepted(5, position, 1) for position in range(4000)]
    assert np.mean(is_hard) == pytest.approx(0.25, abs=0.05)
    ends = {state: [] for state in (False, True)}
    for state, next_state in pairwise(is_hard):
        ends[state].append(next_state != state)
    assert [np.mean(ends[state]) for state in (False, True)] == pytest.approx([0.1, 0.3], abs=0.05)


def test_measured_rates_are_those_of_whole_drafts():
    """vLLM logs the share of drafts that are accepted up to each place."""
    acceptance = PerPosition([0.8, 0.6, 0.3])
    accepted = [acceptance.accepted(0, position, 4) for position in range(0, 80_000, 4)]
    shares = [sum(number > place for number in accepted) / len(accepted) for place in range(4)]
    assert shares == pytest.approx([0.8, 0.6, 0.3, 0.0], abs=0.02)


WORDS = ("+system=vllm-v1", "model=llama-3.1-8b", "arrivals.rate=1", "arrivals.duration_s=4")


def configured(*words):
    return HydraFrontEnd().configure([*WORDS, *words], {})


@pytest.mark.parametrize(("drafter", "more_bytes"), [("heads", 4096), ("draft_model", 16 * 2048)])
def test_drafters_take_memory_of_the_pool(drafter, more_bytes):
    """A token has K and V of the model's 32 layers and of the drafter's, and weights take room."""
    config = configured("~server.kv_memory_gib", "server.num_blocks=null", f"speculation={drafter}")
    parts = build(config)
    weight_bytes = drafter_memory(parts.scheduler.drafter, config.model, 1).weight_bytes
    assert weight_bytes > 10**8
    token_bytes = 32 * 4096 + more_bytes
    assert parts.pool.layer_bytes * parts.pool.num_layers == token_bytes
    room = config.server.kv_pool_bytes(config.model) - weight_bytes
    num_slots = parts.pool.num_slots + config.null_blocks * parts.scheduler.memory.block_size
    assert num_slots == room // token_bytes


@pytest.mark.parametrize(
    ("release", "drafter", "hits"),
    [
        ("0.19", "ngram", [0, 96, 96]),
        ("0.19", "heads", [0, 80, 80]),
        ("0.33", "ngram", [0, 96, 96]),
        ("0.33", "heads", [0, 96, 80]),
    ],
)
def test_heads_find_what_their_hidden_states_are_known_for(release, drafter, hits):
    """The same prompt again, and one that differs behind 96 tokens: the last block of a hit is
    computed again, or since 0.33 known by the token behind it.
    """
    prompt = tuple(range(100))
    prompts = prompt, prompt, (*prompt[:96], *range(200, 204))
    requests = [
        Request(i, arrival_ps=i * 10**12, prompt_len=100, output_len=4, prompt_ids=ids)
        for i, ids in enumerate(prompts)
    ]
    words = f"release={release}", *WORDS[:2], "scheduler=vllm_v1", f"speculation={drafter}"
    assert run(*words, trace=requests).requests["hit_tokens"].tolist() == hits


@pytest.mark.parametrize(("release", "first_slots"), [(V0_19, 10), (V0_33, 13)])
def test_first_chunk_needs_the_look_ahead_since_033(release, first_slots):
    scheduler = scheduler_of(Heads(3), policy=NotedAdmissions, release=release)
    served(scheduler, (10, 4))
    assert scheduler.policy.admitted == [first_slots]


def test_prompt_of_one_token_is_as_long_as_the_drafts_beside_it_since_033():
    """With discarded drafts an output of 4 takes 4 iterations if none is accepted."""
    chunks = {}
    for release in (V0_19, V0_33):
        scheduler = scheduler_of(NGram(3, acceptance=Constant(0.0)), release=release)
        plans = plans_of(scheduler)
        requests = [
            Request(0, arrival_ps=0, prompt_len=10, output_len=30),
            Request(1, arrival_ps=PS // 500, prompt_len=1, output_len=4),
            Request(2, arrival_ps=PS // 100, prompt_len=9, output_len=4),
        ]
        acceptance = scheduler.drafter.acceptance
        recorder = simulate(requests, scheduler, OneMillisecond(), MAX_LEN, acceptance=acceptance)
        assert recorder.totals.generated == 38
        chunks[release] = [(chunk.new, chunk.padding) for plan in plans for chunk in plan.chunks]
    prompts = [(10, 0), (1, 0), (9, 0)]
    assert chunks == {V0_19: prompts, V0_33: [prompts[0], (1, 3), prompts[2]]}


def test_padded_prompt_waits_for_budget_for_all_its_rows():
    """A decode with 3 drafts leaves 3 of 7 tokens, and the rows of a prompt of one token are 4."""
    scheduler = scheduler_of(NGram(3), release=V0_33, max_num_batched_tokens=7, max_num_seqs=4)
    plans = plans_of(scheduler)
    served(scheduler, (5, 9), (1, 2))
    assert [len(plan.chunks) for plan in plans[:2]] == [2, 0]  # beside a prompt it is not padded
    scheduler = scheduler_of(NGram(3), release=V0_33, max_num_batched_tokens=7, max_num_seqs=4)
    plans = plans_of(scheduler)
    requests = [
        Request(0, arrival_ps=0, prompt_len=5, output_len=9),
        Request(1, arrival_ps=1, prompt_len=1, output_len=2),
    ]
    acceptance = scheduler.drafter.acceptance
    simulate(requests, scheduler, OneMillisecond(), MAX_LEN, acceptance=acceptance)
    assert [len(plan.chunks) for plan in plans[:2]] == [1, 0]


@pytest.mark.parametrize(("release", "first_chunk"), [(V0_19, 56), (V0_33, 62)])
def test_tokens_of_the_drafters_batch_are_charged_by_those_that_run_since_033(release, first_chunk):
    """A draft model computes a token more of each sequence; 64 tokens and 8 sequences at most."""
    drafter = DraftModel(2, acceptance=Constant(0.0))
    scheduler = scheduler_of(drafter, num_blocks=80, release=release)
    plans = plans_of(scheduler)
    served(scheduler, (60, 2), (60, 2))
    assert sum(chunk.new for chunk in plans[0].chunks) == first_chunk


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("speculation=ngram",), "cannot be planned ahead"),
        (("speculation=heads", "scheduler=mixed"), "plans no drafts"),
        (("speculation=heads", "speculation.off_above=4"), "always plans all drafts"),
        (("speculation=heads", "speculation.keeps_slots=false"), "keeps_slots"),
        (("speculation=heads", "replicas=2"), "behind a router with drafts"),
        (("speculation=heads", "workload.num_seqs=2"), "parallel samples and beams"),
        (("speculation=heads", "preemption=swap"), "preemption=Swap: is not modelled with drafts"),
        (("speculation=heads", "model=gpt-oss-20b", "~server.kv_memory_gib"), "windows or states"),
        (("speculation=heads", "policy=prefix_caching"), "cache of prefixes"),
        (("speculation=heads", "policy=contiguous_oracle"), "true output length"),
    ],
)
def test_what_is_not_modelled_with_drafts_is_refused(words, message):
    refuses(message, lambda: build(configured(*words)))
