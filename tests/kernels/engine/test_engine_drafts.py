"""With drafts the engine says what it says without; what is accepted comes from the model."""

from dataclasses import replace
from functools import cache, partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")

import tiny_models as tiny  # noqa: E402
from host_and_gpu import HostAndGpu  # noqa: E402
from same_runs import assert_same_rows  # noqa: E402
from tiny import MS, OneSecond  # noqa: E402

from testbed.cost.model import CostModel, Launch  # noqa: E402
from testbed.engine.simulation import simulate  # noqa: E402
from testbed.kernels.engine.drafters import NGramDrafter  # noqa: E402
from testbed.kernels.engine.gpu_engine import EndTokens  # noqa: E402
from testbed.kernels.engine.models import Model  # noqa: E402
from testbed.kernels.engine.sampler import TopP  # noqa: E402
from testbed.kernels.engine.token_buffers import TokenBuffers  # noqa: E402
from testbed.memory.contiguous.reservations import ContiguousMax  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.prefix_cache.output_caching import OutputCaching  # noqa: E402
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching  # noqa: E402
from testbed.run.metrics import summarize  # noqa: E402
from testbed.sched.preemption import Recompute  # noqa: E402
from testbed.sched.vllm_v1 import VllmV1  # noqa: E402
from testbed.speculation.acceptance import Acceptance  # noqa: E402
from testbed.speculation.draft_model import DraftModel  # noqa: E402
from testbed.speculation.ngram import NGram  # noqa: E402
from testbed.vllm.releases import DEFAULT, RELEASES  # noqa: E402

LENGTHS = [(5, 19), (17, 14), (1, 22), (30, 3), (8, 20), (33, 12), (3, 1)]
LONG = [(9, 30), (8, 31), (10, 29)]
THRESHOLD = "long_prefill_token_threshold"
LIMITS = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 24,
    THRESHOLD: 9,
    "scheduler_reserve_full_isl": False,
}
MAX_LEN = 128


def ngram(num_drafts=4, lookup_min=1, **options):
    return NGram(num_drafts, lookup_min=lookup_min, lookup_max=3, **options)


def with_drafts(speculation, policy, limits=LIMITS):
    return VllmV1(policy, Recompute(), drafter=speculation, max_len=MAX_LEN, **limits)


def without(policy):
    return VllmV1(policy, Recompute(), **LIMITS)


def draft_model(family, num_drafts=4, **options):
    return DraftModel(num_drafts, tiny.SHAPES[family], **options)


@cache
def model(family, seed=0):
    """The weights that draft; those of the same family and seed 0 are the served model's."""
    arch = tiny.architecture(family)
    return Model(arch, tiny.weights(arch, seed))


@cache
def outputs_without(family, requests):
    """The engine's tokens without drafts, under any policy."""
    return tiny.engine(family, Paged, without, debug=False).serve(requests).outputs


def equal_outputs(requests, family, policy, speculation, **options):
    """Serve with drafts and without. The engine and the records of the run with drafts; and of each
    of its iterations the draft tokens, and how many of them the model said too.
    """
    drafter = options.pop("drafter", None)
    scheduler = partial(with_drafts, speculation, limits=options.pop("limits", LIMITS))
    engine = tiny.engine(family, policy, scheduler, drafter=drafter, **options)
    verified = watched(engine.runner.sampler)
    records = engine.serve(requests)
    assert records.recorder.totals.finished == len(requests)
    assert records.outputs == outputs_without(family, tuple(requests))
    assert not engine.runner.token_buffers.tokens
    assert not engine.runner.tables
    assert engine.scheduler.policy.usage().held == 0
    engine.scheduler.policy.check()
    counts = engine.scheduler.drafting.counts
    assert counts.drafted == sum(it.work.draft_tokens for it in records.iterations)
    assert sum(drafted for drafted, _ in verified) == counts.drafted
    return engine, records, verified


POLICIES = [
    partial(Paged, block_size=1),
    Paged,
    ContiguousMax,
    partial(PrefixCaching, block_size=4),
]


def watched(sampler):
    """A list to which the draft tokens of each iteration are added, and how many are accepted."""
    verified, verify = [], sampler.verify

    def watch(drawn, drafts):
        accepted = verify(drawn, drafts)
        verified.append((sum(map(len, drafts.values())), sum(accepted.values())))
        return accepted

    sampler.verify = watch
    return verified


@pytest.mark.parametrize("family", ["opt", "llama", "qwen2", "fp8"])
@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_those_without_drafts(family, policy):
    engine, *_ = equal_outputs(tiny.requests(LENGTHS), family, policy, ngram())
    assert 0 < engine.scheduler.drafting.counts.accepted < engine.scheduler.drafting.counts.drafted


@pytest.mark.parametrize(("family", "drafting"), [("opt", "llama"), ("llama", "opt")])
def test_another_model_drafts_and_tokens_are_those_without(family, drafting):
    options = {"drafter": model(drafting, seed=1)}
    equal_outputs(tiny.requests(LENGTHS), family, Paged, draft_model(drafting), **options)


@pytest.mark.parametrize("num_drafts", [1, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_that_drafts_for_itself_is_always_right(policy, num_drafts):
    """Its K and V are therefore those of the model at each of its tokens."""
    speculation, requests = draft_model("llama", num_drafts), tiny.requests(LENGTHS)
    *_, verified = equal_outputs(requests, "llama", policy, speculation, drafter=model("llama"))
    assert all(drafted == accepted for drafted, accepted in verified)


def test_a_drafter_by_graphs_has_logits_of_every_decode():
    """As a CUDA graph has; of those for which the budget leaves no drafts nothing is drafted."""
    limits = LIMITS | {"max_num_seqs": 15}  # which leaves 9 tokens: 4, 4 and 1 of three sequences
    scheduler = partial(with_drafts, draft_model("llama", 3), limits=limits)
    requests = [r._replace(arrival_ps=0) for r in tiny.requests([(2, 20)] * 9)]
    engine = tiny.engine("llama", Paged, scheduler, drafter=model("llama"))
    drafter, unwanted = engine.runner.drafter, []
    eager = drafter.eager

    def by_graphs(batch):
        if batch.num_prompts:
            return eager(batch)
        unwanted.append(len(batch.parts) - len(batch.wanted))
        return eager(replace(batch, wanted=np.arange(len(batch.parts))))

    drafter.forward = by_graphs
    verified = watched(engine.runner.sampler)
    assert engine.serve(requests).outputs == outputs_without("llama", tuple(requests))
    assert max(unwanted) > 0
    assert all(drafted == accepted for drafted, accepted in verified)


@pytest.mark.parametrize("debug", [True, False])
def test_slots_of_rejected_drafts_come_back_at_once(debug):
    """And others take them."""
    policy, requests = partial(Paged, block_size=2), tiny.requests([*LENGTHS, *LONG])
    equal_outputs(requests, "llama", policy, ngram(keeps_slots=False), debug=debug)
    speculation = draft_model("llama", keeps_slots=False)
    options = {"drafter": model("llama", seed=1), "debug": debug}
    equal_outputs(requests, "llama", policy, speculation, **options)


@pytest.mark.parametrize("debug", [True, False])
def test_drafting_changes_no_token_after_a_preemption(debug):
    policy, small = partial(Paged, block_size=4), tiny.pool(64)
    requests = tiny.requests(LONG)
    for speculation, drafter in ((ngram(), None), (draft_model("llama", 2), model("llama"))):
        options = {"spec": small, "debug": debug, "drafter": drafter}
        _, records, verified = equal_outputs(requests, "llama", policy, speculation, **options)
        assert records.recorder.totals.recomputes >= 2
    assert all(drafted == accepted for drafted, accepted in verified)


@pytest.mark.parametrize("caching", [PrefixCaching, OutputCaching])
def test_drafting_changes_no_token_after_prefix_hits(caching):
    """The second half of the requests finds the prompts of the first, and rejected drafts in no
    block.
    """
    prompts = [tuple(range(i, i + 30)) for i in (1, 20)]
    requests = [
        r._replace(prompt_ids=prompts[i % 2]) for i, r in enumerate(tiny.requests([(30, 15)] * 6))
    ]
    policy = partial(caching, block_size=4)
    for speculation, drafter in ((ngram(), None), (draft_model("opt", 3), model("opt"))):
        engine, _, verified = equal_outputs(requests, "opt", policy, speculation, drafter=drafter)
        assert engine.scheduler.policy.counters()["hit_tokens"] > 100
    assert all(drafted == accepted for drafted, accepted in verified)


def test_tokens_behind_a_registered_prefix():
    """The drafter stores the prefix, and copies the block that it ends in, as the model does."""

    def policy(spec):
        built = Paged(spec, block_size=8)
        built.register_prefix(21)
        return built

    requests = tiny.requests([(30, 25), (22, 36), (21, 24)], registered_prefix=21)
    arch = tiny.architecture("llama")
    scheduler = partial(with_drafts, draft_model("llama"))
    options = {"registered": 21, "drafter": model("llama")}
    engine = tiny.engine("llama", policy, scheduler, **options)
    prompts = [engine.runner.token_buffers.prompt(r.incoming) for r in requests]
    verified = watched(engine.runner.sampler)
    outputs = engine.serve(requests).outputs
    for request, prompt in zip(requests, prompts, strict=True):
        (tokens,) = outputs[request.request_id]
        assert tokens == tiny.greedy(arch, tiny.weights(arch), prompt, tokens)
    assert all(drafted == accepted for drafted, accepted in verified)


class Replayed(NGram):
    """So many drafts are found, and so many are accepted, as in a run of the engine, by request and
    output tokens.
    """

    def __init__(self, engine, num_drafts):
        super().__init__(num_drafts, acceptance=EverySecond())
        self.proposed = {}
        verified, found = engine.runner.verified, engine.runner.drafter.found
        verified_accepted = verified.accepted

        def accepted(*place):
            number = self.acceptance.numbers[place[:2]] = verified_accepted(*place)
            return number

        def find(groups):
            counts = found(groups)
            for group in groups:
                at = group.request_id, group.num_generated
                self.proposed[at] = counts[group.request_id]
            return counts

        verified.accepted, engine.runner.drafter.found = accepted, find

    def num_drafts(self, request_id, num_generated, batch_size):
        """The drafts found at the start of the step that has brought the newest tokens."""
        before = num_generated - 1
        while (request_id, before) not in self.proposed:
            before -= 1
        return self.proposed[request_id, before]


class EverySecond(Acceptance):
    def __init__(self):
        self.numbers = {}

    def accepted(self, request_id, num_generated, num_drafts):
        return self.numbers[request_id, num_generated]


@pytest.mark.parametrize("num_slots", [64, 512])
def test_engine_and_simulator_agree_step_by_step(num_slots):
    """If the simulator accepts the engine's drafts, and an iteration takes the same time, both
    record the same.
    """
    policy, requests = partial(Paged, block_size=4), tiny.requests([*LENGTHS, *LONG])
    pool = tiny.pool(num_slots)
    engine = tiny.engine("llama", policy, partial(with_drafts, ngram()), spec=pool)
    replayed = Replayed(engine, 4)
    ours = engine.serve(requests).recorder
    scheduler = with_drafts(replayed, policy(pool))
    options = {"fast_forward": False, "acceptance": replayed.acceptance}
    theirs = simulate(requests, scheduler, OneSecond(), MAX_LEN, **options)
    assert (ours.totals.recomputes > 0) == (num_slots == 64)
    assert summarize(ours, num_slots) == summarize(theirs, num_slots)
    assert_same_rows(ours.requests, theirs.requests)
    assert_same_rows(ours.spans, theirs.spans)
    assert engine.scheduler.drafting.counts == scheduler.drafting.counts


class AsLaunched(CostModel):
    """The times of HostAndGpu, with the engine's way of verifying drafts."""

    verifies_as_prompts = True

    def iteration(self, work):
        return (9 if work.prefill or work.draft_tokens else 5) * MS

    def launch(self, decode_seqs, num_prompts, prompt_tokens):
        return Launch(2 * MS, (12 if num_prompts else 3) * MS)


def test_launches_of_drafts_take_the_simulator_what_they_take_the_engine(monkeypatch):
    """Tokens with drafts behind them are launched as prompts are, by a host that is slower."""
    requests, cost = tiny.requests([*LENGTHS, *LONG]), AsLaunched()
    clock = HostAndGpu(
        monkeypatch,
        2 * MS,
        lambda has_prompts: cost.launch(0, has_prompts, 0).whole_ps,
        0,
        lambda decodes, stored, tokens: (9 if tokens else 5) * MS,
    )
    engine = tiny.engine("llama", Paged, partial(with_drafts, ngram()), clock=clock)
    replayed = Replayed(engine, 4)
    ours = engine.serve(requests).recorder
    options = {"fast_forward": False, "acceptance": replayed.acceptance}
    scheduler = with_drafts(replayed, Paged(tiny.pool(512)))
    theirs = simulate(requests, scheduler, cost, MAX_LEN, **options)
    assert engine.scheduler.drafting.counts.drafted > 0
    assert_same_rows(ours.requests, theirs.requests)


def test_drawn_tokens_are_those_without_drafts():
    """A token's random number belongs to its place, so that drafts change no draw."""
    requests, rule = tiny.requests(LENGTHS), TopP(0.3, 0.9, seed=5)
    speculating, plain = (
        tiny.engine("llama", Paged, scheduler)
        for scheduler in (partial(with_drafts, ngram()), without)
    )
    for engine in (speculating, plain):
        engine.runner.sampler.rules |= {request.request_id: rule for request in requests}
    outputs = speculating.serve(requests).outputs
    assert outputs == plain.serve(requests).outputs
    assert outputs != tiny.engine("llama", Paged, without).serve(requests).outputs
    assert speculating.scheduler.drafting.counts.accepted > 0


def test_a_token_among_accepted_drafts_ends_its_request():
    requests = tiny.requests([(8, 60)])
    (whole,) = tiny.engine("llama", Paged, without).serve(requests).outputs[0]
    for end in sorted(set(whole)):
        engine = tiny.engine("llama", Paged, partial(with_drafts, ngram()))
        engine.executor.end_tokens[0] = EndTokens(frozenset([end]))
        records = engine.serve(requests)
        (tokens,) = records.outputs[0]
        assert tokens == whole[: whole.index(end) + 1]
        assert records.recorder.totals.generated == len(tokens)


FAMILIES = ("llama", "opt")
CACHING = (partial(PrefixCaching, block_size=4), partial(OutputCaching, block_size=4))
ANY_POLICY = (ContiguousMax, *CACHING, *(partial(Paged, block_size=n) for n in (1, 4, 16)))


@st.composite
def histories(draw):
    """The arguments of `equal_outputs`: prompts that repeat themselves and each other, pools that
    are too small for all, and any limits.
    """
    family, policy = draw(st.sampled_from(FAMILIES)), draw(st.sampled_from(ANY_POLICY))
    lengths = draw(
        st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=5)
    )
    period = draw(st.integers(1, 9))
    requests = tiny.requests(lengths)
    if draw(st.booleans()):
        prompts = [tuple(i % period for i in range(r.prompt_len)) for r in requests]
        pairs = zip(requests, prompts, strict=True)
        requests = [r._replace(prompt_ids=prompt, arrival_ps=0) for r, prompt in pairs]
    keeps = policy in (ContiguousMax, *CACHING) or draw(st.booleans())
    options = {"num_drafts": draw(st.integers(1, 5)), "keeps_slots": keeps}
    options["off_above"] = draw(st.sampled_from([None, None, 2]))
    if draw(st.booleans()):
        return family, policy, requests, ngram(**options, lookup_min=draw(st.integers(1, 3))), {}
    drafting, seed_of = draw(st.sampled_from(FAMILIES)), draw(st.integers(0, 1))
    drafter = {"drafter": model(drafting, seed_of)}
    return family, policy, requests, draft_model(drafting, **options), drafter


def check_history(history, pool, limits, debug):
    """Debug rereads every table, so that it hides those that were not reread."""
    family, policy, requests, speculation, options = history
    pool = tiny.pool(256 if policy is ContiguousMax else pool)
    limits = limits | ({"release": DEFAULT} if policy in CACHING else {})
    if limits["release"].admits_with_drafts and limits[THRESHOLD]:  # shorter chunks are refused
        limits = limits | {THRESHOLD: 1 + speculation.max_drafts}
    options = options | {"spec": pool, "limits": limits, "debug": debug}
    *_, verified = equal_outputs(requests, family, policy, speculation, **options)
    drafter = options.get("drafter")
    if drafter is model(family):
        assert all(drafted == accepted for drafted, accepted in verified)


POOL = st.sampled_from([56, 80, 512])
LIMIT = st.fixed_dictionaries(
    {
        "max_num_seqs": st.sampled_from([2, 6]),
        "max_num_batched_tokens": st.sampled_from([12, 40]),
        THRESHOLD: st.sampled_from([0, 5]),
        "scheduler_reserve_full_isl": st.booleans(),
        "release": st.sampled_from(list(RELEASES.values())),
    }
)


@settings(max_examples=30, deadline=None)
@given(history=histories(), pool=POOL, limits=LIMIT, debug=st.booleans())
def test_histories_with_drafts_say_what_those_without_say(history, pool, limits, debug):
    check_history(history, pool, limits, debug)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(history=histories(), pool=POOL, limits=LIMIT, debug=st.booleans())
def test_600_histories_with_drafts_say_what_those_without_say(history, pool, limits, debug):
    check_history(history, pool, limits, debug)


RUNS = st.integers(1, 3)
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(prompt=TOKENS, steps=st.lists(TOKENS, max_size=4), low=RUNS, k=st.integers(1, 5))
def test_runs_are_found_where_a_plain_search_finds_them(prompt, steps, low, k):
    buffers = TokenBuffers(4)
    drafter = NGramDrafter(buffers, low, 3, k)
    (request,) = tiny.requests([(len(prompt), 1)])
    group = without(Paged(tiny.pool(64))).new_group(request.incoming)
    seq_id = group.sequences[0].seq_id
    tokens = buffers.tokens[seq_id] = list(prompt)
    for more in [[], *steps]:
        tokens += more
        expected = searched(tokens, low, k)
        assert drafter.found([group]) == {0: len(expected)}
        assert drafter._look_up(seq_id) == expected


def searched(tokens, low, k):
    """The tokens behind the first place of the longest of the last 3 to `low` tokens."""
    for size in range(3, low - 1, -1):
        for at in range(size, len(tokens)):
            if tokens[at - size : at] == tokens[-size:]:
                return tuple(tokens[at : at + k])
    return ()
