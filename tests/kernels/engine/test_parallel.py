"""Tensor parallelism, with threads as ranks: shards are the whole, and every feature of the engine
gives the tokens of one rank.
"""

import pickle
from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402
from ranks_in_threads import led_by_threads  # noqa: E402
from refusals import refuses  # noqa: E402
from test_engine_correctness import LENGTHS, check  # noqa: E402
from test_launching_ahead import ahead  # noqa: E402

from testbed.kernels.engine.loaded_model import Bench, in_turn  # noqa: E402
from testbed.kernels.engine.parallel.message import Compute  # noqa: E402
from testbed.kernels.engine.parallel.shards import Shard, check_divides  # noqa: E402
from testbed.kernels.engine.phases import Phase  # noqa: E402
from testbed.kernels.engine.sampler import TopP  # noqa: E402
from testbed.kernels.engine.served_run import Options  # noqa: E402
from testbed.memory.contiguous.reservations import (  # noqa: E402
    ContiguousOracle,
    ContiguousPow2,
)
from testbed.memory.groups.grouped import Grouped  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.policy import PoolSpec, Tier, host  # noqa: E402
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching  # noqa: E402
from testbed.memory.tiers.tiered_caching import TieredCaching  # noqa: E402
from testbed.sched.chunked import ChunkedPrefill  # noqa: E402
from testbed.sched.preemption import Recompute, Swap  # noqa: E402

FAMILIES = ("opt", "llama", "qwen2")  # with 4, 2 and 1 heads of K and V, all with 4 heads


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_shards_put_together_are_the_whole(family, num_ranks):
    arch = tiny.architecture(family)
    whole = tiny.weights(arch)
    shards = [tiny.weights(arch, part=Shard(arch, rank, num_ranks)) for rank in range(num_ranks)]
    check_rows(whole.embedding, [shard.embedding for shard in shards])
    check_rows(whole.head, [shard.head for shard in shards])
    for i, layer in enumerate(whole.layers):
        parts = [shard.layers[i] for shard in shards]
        check_columns(layer.out.weight, [part.out.weight for part in parts])
        check_columns(layer.down.weight, [part.down.weight for part in parts])
        check_heads(arch, layer.qkv.weight, [part.qkv.weight for part in parts])
        if layer.qkv.bias is not None:
            check_heads(arch, layer.qkv.bias, [part.qkv.bias for part in parts])
        check_up(arch, layer.up.weight, [part.up.weight for part in parts])


def check_rows(whole, parts):
    """The rows of a table are divided, and padded to as many on each rank."""
    assert torch.equal(torch.cat(parts)[: len(whole)], whole)


def check_columns(whole, parts):
    assert torch.equal(torch.cat(parts, dim=1), whole)


def check_up(arch, whole, parts):
    """Of gate and up, which are one matrix, each rank has its rows of both."""
    num_matrices = arch.spec.ffn_matrices - 1
    for matrix, *of_ranks in zip(
        whole.chunk(num_matrices), *[part.chunk(num_matrices) for part in parts], strict=True
    ):
        assert torch.equal(torch.cat(of_ranks), matrix)


def check_heads(arch, whole, parts):
    """Queries are divided; each rank has the heads of K and V that its queries read."""
    spec, size, n = arch.spec, arch.spec.head_size, len(parts)
    q, k, v = whole.split([arch.q_width, arch.kv_width, arch.kv_width])
    own_q, own_kv = spec.num_heads // n * size, max(1, spec.num_kv_heads // n) * size
    queries, keys, values = zip(
        *[part.split([own_q, own_kv, own_kv]) for part in parts], strict=True
    )
    assert torch.equal(torch.cat(queries), q)
    copies = max(1, n // spec.num_kv_heads)
    assert torch.equal(torch.cat(keys[::copies]), k)
    assert torch.equal(torch.cat(values[::copies]), v)
    for rank in range(n):
        assert torch.equal(keys[rank], keys[rank // copies * copies])


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("family", [*FAMILIES, "fp8"])
def test_tokens_of_ranks_are_those_of_the_plain_forward_pass(family, num_ranks):
    """In debug mode, which fills slots without an owner with NaN on every rank."""
    leads = tiny.engine(family, num_ranks=num_ranks)
    check(leads, tiny.requests(LENGTHS), family)
    followers = leads.close.__self__.followers
    leads.close()
    heads = max(1, tiny.SHAPES[family].num_kv_heads // num_ranks)
    for follower in followers:
        pools = follower.device.pools
        assert pools.spec.num_kv_heads == heads
        assert pools.device.shape == leads.runner.attention.pools.device.shape
        if pools.scales is None:
            assert torch.isnan(pools.device).all()


def chunked(policy):
    return ChunkedPrefill(policy, Recompute(), max_num_batched_tokens=7, max_num_seqs=16)


SAME = tuple(range(3, 33))
SWAPPING = {"spec": tiny.pool(64, 256), "scheduler": partial(tiny.mixed, preemption=Swap())}
TIERED = PoolSpec(60, 128, (*host(0), Tier("dram", 512)))
FORKED = [(9, 12), (6, 14), (11, 9)]
FEATURES = {
    "prefix hits": (
        {"policy": partial(PrefixCaching, block_size=4)},
        tiny.requests([(30, 5), (30, 6), (30, 4)], prompt_ids=SAME),
        "hit_tokens",
    ),
    "swaps": (
        {"policy": partial(Paged, block_size=4), **SWAPPING},
        tiny.requests([(9, 20), (8, 21), (10, 19), (7, 22)]),
        "swaps",
    ),
    "chunks": ({"scheduler": chunked}, tiny.requests(LENGTHS), ""),
    "forks": ({"policy": partial(Paged, block_size=4)}, tiny.requests(FORKED, 3), "copies"),
    "forks into extents": ({"policy": ContiguousPow2}, tiny.requests(FORKED, 3), "copies"),
    "beams": ({"policy": partial(Paged, block_size=4)}, tiny.requests(FORKED, 3, True), "copies"),
    "tiers": (
        {"policy": partial(TieredCaching, block_size=4), "spec": TIERED},
        [
            r._replace(prompt_ids=tuple(range(i % 3 * 15, i % 3 * 15 + 30)))
            for i, r in enumerate(tiny.requests([(30, 6)] * 9))
        ],
        "loaded_blocks",
    ),
    "groups": (
        {
            "family": "hybrid",
            "policy": partial(Grouped, block_size=4, page_rule="large_pages"),
            "spec": tiny.pool(40),
            "debug": False,
        },
        tiny.requests([(9, 27), (8, 28), (10, 26)]),
        "",
    ),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_gives_the_tokens_of_one_rank(feature):
    options, requests, event = FEATURES[feature]
    alone = tiny.engine(**{"family": "llama"} | options)
    leads = tiny.engine(num_ranks=2, **{"family": "llama"} | options)
    outputs = alone.serve(requests).outputs
    records = leads.serve(requests)
    leads.close()
    assert records.outputs == outputs
    assert records.recorder.totals.finished == len(requests)
    totals, counters = records.recorder.totals, leads.scheduler.policy.counters()
    assert not event or getattr(totals, event, counters.get(event))


def test_an_iteration_is_one_message_and_sends_a_table_once(monkeypatch):
    sent = []
    dumps = pickle.dumps
    monkeypatch.setattr(
        pickle, "dumps", lambda message, *how: sent.append(message) or dumps(message)
    )
    engine = tiny.engine("llama", num_ranks=2, debug=False)
    del sent[:]  # of the start
    records = engine.serve(tiny.requests([(20, 12)]))
    engine.close()
    *messages, _ = sent
    assert len(messages) == len(records.iterations)
    computed = [next(c for c in commands if isinstance(c, Compute)) for commands in messages]
    tables = [len(compute.places) for compute in computed]
    assert sum(tables) == tables[0] == 1  # 32 tokens fill the two blocks of the prompt
    assert max(len(dumps(message)) for message in messages[1:]) < 2000


def test_tokens_drawn_on_rank_0_reach_the_others_before_the_host_has_them(monkeypatch):
    """Plans in flight: a launch reads the tokens of the one before, on the device."""
    late, batch_of = [], Compute._batch

    def watched(self, worker):
        late.append(self.late is not None)
        return batch_of(self, worker)

    monkeypatch.setattr(Compute, "_batch", watched)
    requests, drawn = tiny.requests(LENGTHS, 3), {"parallel": TopP(0.8, 0.9, seed=5)}
    outputs = []
    for num_ranks in (1, 2):
        engine = tiny.engine("llama", Paged, ahead, debug=False, num_ranks=num_ranks, **drawn)
        outputs.append(engine.serve(requests).outputs)
        engine.close()
    assert outputs[0] == outputs[1]
    assert sum(late) > 10


@pytest.mark.parametrize(
    ("changes", "num_ranks", "words"),
    [
        ({}, 3, "4 attention heads must be divisible"),
        ({"num_heads": 6, "num_kv_heads": 3}, 2, "3 heads of K and V can be neither divided"),
        ({"ffn_size": 63}, 2, "a feed-forward layer of 63 values"),
    ],
)
def test_what_ranks_cannot_divide_is_refused(changes, num_ranks, words):
    refuses(words, check_divides, replace(tiny.SHAPES["llama"], **changes), num_ranks)


def test_workers_serve_one_engine_after_the_other():
    """As calibration does, which gives each batch an engine with a pool of its own."""
    arch = tiny.architecture("llama")
    shards = [Shard(arch, rank, 2) for rank in range(2)]
    first, second = (tiny.weights(arch, part=shard) for shard in shards)
    lead = led_by_threads(shards, [second])
    options = Options(clock=tiny.StepClock(1e-3))
    bench = Bench(shards[0].local, first, options, lead)
    alone = Bench(arch, tiny.weights(arch), options)
    requests = tiny.requests([(20, 6), (9, 8)])
    for kind in (Paged, ContiguousOracle):
        engines = [each.engine(kind, in_turn, [Phase(requests)], 2) for each in (alone, bench)]
        outputs = [engine.serve(requests).outputs for engine in engines]
        assert outputs[0] == outputs[1]
    lead.close()
