"""Under every policy, tokens are those of a forward pass without any; its
misuse is named.
"""

import re
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import faulty_policies as faults  # noqa: E402
import tiny_models as tiny  # noqa: E402

from testbed.memory.contiguous.reservations import (  # noqa: E402
    ContiguousMax,
    ContiguousOracle,
    ContiguousPow2,
)
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.policy import PoolSpec, Tier, host  # noqa: E402
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching  # noqa: E402
from testbed.memory.tiers.store_rules import BeforeEviction  # noqa: E402
from testbed.memory.tiers.tiered_caching import TieredCaching  # noqa: E402
from testbed.sched.chunked import ChunkedPrefill  # noqa: E402
from testbed.sched.preemption import Recompute, RecomputeTail, Swap  # noqa: E402
from testbed.sched.separate import SeparatePrefill  # noqa: E402
from testbed.sched.static_batch import StaticBatch  # noqa: E402

LENGTHS = [(5, 9), (17, 4), (1, 12), (30, 3), (8, 20), (16, 7), (33, 2), (3, 1)]


def check(engine, requests, family="opt"):
    """Every request is answered, by the tokens that the plain forward pass says."""
    token_buffers = engine.runner.token_buffers
    prompts = {r.request_id: token_buffers.prompt(r.incoming) for r in requests}
    records = engine.serve(requests)
    arch = tiny.architecture(family)
    w = tiny.weights(arch)
    assert records.recorder.totals.finished == len(requests)
    assert not token_buffers.tokens
    assert len(engine.runner.tables) <= 1  # of a registered prefix
    for r in requests:
        (tokens,) = records.outputs[r.request_id]
        assert len(tokens) == r.output_len
        assert tokens == tiny.greedy(arch, w, prompts[r.request_id], tokens), (
            f"request {r.request_id}"
        )
    return records


@pytest.mark.parametrize("family", ["opt", "llama", "qwen2"])
@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_tokens_are_right_for_every_block_size(family, block_size):
    check(
        tiny.engine(family, partial(Paged, block_size=block_size)), tiny.requests(LENGTHS), family
    )


@pytest.mark.parametrize("policy", [ContiguousMax, ContiguousPow2, ContiguousOracle])
def test_tokens_are_right_in_contiguous_memory(policy):
    check(tiny.engine("llama", policy), tiny.requests(LENGTHS), "llama")


@pytest.mark.parametrize("policy", [Paged, partial(PrefixCaching, block_size=4), ContiguousOracle])
def test_tokens_are_right_with_chunked_prefill(policy):
    def chunked(policy):
        return ChunkedPrefill(policy, Recompute(), max_num_batched_tokens=7, max_num_seqs=16)

    check(tiny.engine("qwen2", policy, chunked), tiny.requests(LENGTHS), "qwen2")


def test_tokens_are_right_with_separate_prefill():
    def separate(policy):
        return SeparatePrefill(policy, Recompute(), max_num_batched_tokens=40, max_num_seqs=16)

    check(tiny.engine("opt", scheduler=separate), tiny.requests(LENGTHS))


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.parametrize("rule", [Recompute, RecomputeTail, Swap])
def test_tokens_are_right_after_preemption(rule, debug):
    scheduler, small = partial(tiny.mixed, preemption=rule()), tiny.pool(64, 256)
    engine = tiny.engine("llama", partial(Paged, block_size=4), scheduler, small, debug)
    records = check(engine, tiny.requests([(9, 20), (8, 21), (10, 19), (7, 22)]), "llama")
    totals = records.recorder.totals
    assert (totals.swaps if rule is Swap else totals.recomputes) >= 2


def test_tokens_are_right_after_prefix_hits():
    ids = tuple(range(3, 33))
    requests = tiny.requests([(30, 5), (30, 6), (30, 4)], prompt_ids=ids)
    engine = tiny.engine("opt", partial(PrefixCaching, block_size=4))
    check(engine, requests)
    assert engine.scheduler.policy.counters()["hit_tokens"] == 56


@pytest.mark.parametrize("kind", [{}, {"exclusive": True}, {"store": BeforeEviction()}])
def test_tokens_are_right_after_loads_from_a_tier(kind):
    """Prompts that have left the device are found below, and the debug mode follows their slots."""
    prompts = [tuple(range(i, i + 30)) for i in (1, 20, 31)]
    lengths = [(30, 6)] * 9
    requests = [r._replace(prompt_ids=prompts[i % 3]) for i, r in enumerate(tiny.requests(lengths))]
    small = PoolSpec(60, 128, (*host(0), Tier("dram", 512)))
    engine = tiny.engine("opt", partial(TieredCaching, block_size=4, **kind), spec=small)
    check(engine, requests)
    counters = engine.scheduler.policy.counters()
    assert counters["loaded_blocks"] > 20
    assert counters["hit_tokens"] > 100


def test_tokens_are_right_with_a_registered_prefix():
    def policy(spec):
        built = Paged(spec, block_size=8)
        built.register_prefix(21)
        return built

    requests = tiny.requests([(30, 5), (22, 6), (21, 4)], registered_prefix=21)
    check(tiny.engine("llama", policy, registered=21), requests, "llama")


@pytest.mark.parametrize("policy", [ContiguousMax, ContiguousOracle])
def test_every_planned_token_runs_and_outputs_are_unchanged(policy):
    computed = []

    def static(policy, *, lengths):
        return StaticBatch(
            policy, Recompute(), max_batch_size=4, max_padded_len=100, lengths=lengths
        )

    engine = tiny.engine(policy=policy, scheduler=static, spec=tiny.pool(1024))
    forward = engine.runner.forward

    def watched(batch):
        computed.append(len(batch.tokens))
        return forward(batch)

    engine.runner.forward = watched
    records = check(engine, tiny.requests(tiny.LENGTHS))
    assert computed == [iteration.work.num_tokens for iteration in records.iterations]
    assert sum(computed) > sum(prompt + output - 1 for prompt, output in tiny.LENGTHS)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            faults.ForgottenCopy,
            r"step 2: sequence \d of request 0 reads slot \d+ as its token 8; it holds nothing",
        ),
        (
            faults.DoubleOwner,
            r"step 2: sequence 0 of request 0 reads slot \d+ .* sequence 1 of request 1 wrote",
        ),
        (
            faults.WritesShared,
            r"step 2: sequence 0 of request 0 reads slot \d+ as its token 9; it holds token 9",
        ),
        (
            faults.WrongSwapIn,
            r"step \d+: sequence \d of request \d reads slot \d+ as its token 0; it holds token 4",
        ),
    ],
    ids=lambda parameter: parameter.__name__ if isinstance(parameter, type) else "",
)
def test_planted_faults_are_caught(policy, message):
    assert re.search(message, faults.caught(policy, faults.FAULTS[policy], "cpu", torch.float32))


def test_slots_without_an_owner_are_nan():
    engine = tiny.engine("opt")
    engine.serve(tiny.requests(faults.LENGTHS))
    assert torch.isnan(engine.runner.attention.pools.device).all()
