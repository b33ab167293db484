"""With drafts the engine says what it says without; what is accepted comes from the model."""

from functools import partial

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402

from testbed.kernels.engine.drafters import NGramDrafter  # noqa: E402
from testbed.kernels.engine.gpu_engine import EndTokens  # noqa: E402
from testbed.kernels.engine.ragged import TokenBuffers  # noqa: E402
from testbed.kernels.engine.sampler import TopP  # noqa: E402
from testbed.memory.contiguous.reservations import ContiguousMax  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.prefix_cache.output_caching import OutputCaching  # noqa: E402
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching  # noqa: E402
from testbed.sched.preemption import Recompute  # noqa: E402
from testbed.sched.speculating_v1 import SpeculatingV1  # noqa: E402
from testbed.sched.vllm_v1 import VllmV1  # noqa: E402
from testbed.speculation.ngram import NGram  # noqa: E402

LENGTHS = [(5, 29), (17, 24), (1, 32), (30, 3), (8, 40), (16, 17), (33, 22), (3, 1)]
LONG = [(9, 40), (8, 41), (10, 39), (7, 42)]
LIMITS = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 24,
    "long_prefill_token_threshold": 9,
    "scheduler_reserve_full_isl": False,
}
MAX_LEN = 128


def ngram(num_drafts=4, lookup_min=1, **options):
    return NGram(num_drafts, lookup_min=lookup_min, lookup_max=3, **options)


def with_drafts(speculation, policy):
    return SpeculatingV1(policy, Recompute(), speculation=speculation, max_len=MAX_LEN, **LIMITS)


def without(policy):
    return VllmV1(policy, Recompute(), **LIMITS)


def equal_outputs(requests, family, policy, speculation, **options):
    """Serve with drafts and without; the engine and the records of the run with drafts."""
    engine = tiny.engine(family, policy, partial(with_drafts, speculation), **options)
    records = engine.serve(requests)
    plain = tiny.engine(family, policy, without, **options).serve(requests)
    assert records.recorder.totals.finished == len(requests)
    assert records.outputs == plain.outputs
    assert not engine.runner.token_buffers.tokens
    assert not engine.runner.tables
    assert engine.scheduler.policy.usage().held == 0
    engine.scheduler.policy.check()
    counts = engine.scheduler.counts
    assert counts.drafted == sum(it.work.draft_tokens for it in records.iterations)
    assert 0 < counts.accepted < counts.drafted
    assert len(records.iterations) < len(plain.iterations)
    return engine, records


@pytest.mark.parametrize("family", ["opt", "llama", "qwen2", "fp8"])
@pytest.mark.parametrize(
    "policy",
    [partial(Paged, block_size=1), Paged, ContiguousMax, partial(PrefixCaching, block_size=4)],
)
def test_tokens_are_those_without_drafts(family, policy):
    equal_outputs(tiny.requests(LENGTHS), family, policy, ngram())


def test_slots_of_rejected_drafts_come_back_at_once():
    policy, speculation = partial(Paged, block_size=4), ngram(keeps_slots=False)
    equal_outputs(tiny.requests(LENGTHS), "llama", policy, speculation)


@pytest.mark.parametrize("debug", [True, False])
def test_tokens_after_preemption(debug):
    policy, small = partial(Paged, block_size=4), tiny.pool(80)
    requests = tiny.requests(LONG)
    _, records = equal_outputs(requests, "llama", policy, ngram(), spec=small, debug=debug)
    assert records.recorder.totals.recomputes >= 2


@pytest.mark.parametrize("caching", [PrefixCaching, OutputCaching])
def test_tokens_after_prefix_hits(caching):
    """The second half of the requests finds the prompts of the first, and rejected drafts in no
    block.
    """
    prompts = [tuple(range(i, i + 30)) for i in (1, 20)]
    requests = [
        r._replace(prompt_ids=prompts[i % 2]) for i, r in enumerate(tiny.requests([(30, 25)] * 8))
    ]
    policy = partial(caching, block_size=4)
    engine, _ = equal_outputs(requests, "opt", policy, ngram())
    assert engine.scheduler.policy.counters()["hit_tokens"] > 100


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
    assert speculating.scheduler.counts.accepted > 0


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


RUNS = st.integers(1, 3)
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None, derandomize=True)
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
    """What followed the first place of the longest of the last 3 to `low` tokens."""
    for size in range(3, low - 1, -1):
        for at in range(size, len(tokens)):
            if tokens[at - size : at] == tokens[-size:]:
                return tuple(tokens[at : at + k])
    return ()
