"""Grouped: every page rule and kind of model, against counting every page; fast equals slow; worked arithmetic."""

import random
from dataclasses import replace

import pytest
from same_runs import assert_same
from tiny import analytic

from testbed.core.errors import InputError, UnsupportedError
from testbed.core.layers import KvGroup
from testbed.core.request import Incoming, Request
from testbed.core.sequence import Batch, Sequence, disband, passing_batch
from testbed.core.shapes import read_model
from testbed.core.slots import Grant, Refusal
from testbed.memory.groups.grouped import Grouped
from testbed.memory.groups.page_rules import LargePages, OnePageSize
from testbed.memory.policy import PoolSpec
from testbed.memory.traced import Traced
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from testbed.sim.simulation import simulate

MODELS = {
    "full": (KvGroup("full", 4, 64),),
    "window": (KvGroup("window", 3, 64, 10),),
    "hybrid": (KvGroup("full", 2, 64), KvGroup("window", 6, 64, 10)),
    "uneven": (KvGroup("full", 2, 64), KvGroup("window", 5, 64, 21)),
    "states": (KvGroup("full", 1, 64), KvGroup("state", 3, 0, None, 250)),
}
RULES = ("one_page_size", "large_pages", "fixed_split")
CASES = [(model, rule) for model in MODELS for rule in RULES if (model, rule) != ("states", "fixed_split")]
MAX_LEN = 64


def grouped(model, rule, num_slots=120, block_size=4, **options):
    groups = MODELS[model]
    layers = sum(group.num_layers for group in groups if not group.state_bytes)
    return Grouped(PoolSpec(num_slots, MAX_LEN, layer_bytes=64, num_layers=layers, groups=groups), block_size, rule,
                   **options)  # fmt: skip


def account(policy):
    used = policy.usage()
    assert used.allocated + used.free == used.total
    assert used.live <= used.held <= used.allocated
    policy.check()
    return used, {seq_id: policy.table(table.seq) for seq_id, table in policy._tables.items()}


def calls(policy, rng, num_calls):
    """Random admissions, chunks, decode steps and releases; the account after each, and whether it was refused."""
    batch, prefilling, number = Batch(), [], 0
    for _ in range(num_calls):
        before = account(policy)
        act = rng.choice(["admit", "chunk", "join", "step", "step", "step", "release"])
        answer = None
        if act == "admit":
            number += 1
            seq = Sequence(number, Incoming(number, 0, rng.randint(1, 40), 1))
            size = rng.randint(1, seq.prompt_len)
            answer = policy.admit([seq], size)
            if isinstance(answer, Refusal):
                assert policy.admit([seq], size) is answer
            else:
                seq.num_slots = size
                prefilling.append(seq)
        elif act == "chunk" and prefilling:
            seq = rng.choice(prefilling)
            more = min(rng.randint(1, 20), MAX_LEN - seq.num_slots)
            one = passing_batch([seq])
            answer = policy.extend(one, more) if more else None
            if isinstance(answer, Grant):
                one.extend(more)
            disband(one)
        elif act == "join" and prefilling:
            batch.add(prefilling.pop())
        elif act == "step" and len(batch) and batch.max_context_len < MAX_LEN:
            answer = policy.extend(batch)
            if isinstance(answer, Grant):
                batch.extend(1)
        elif act == "release" and (len(batch) or prefilling):
            seq = rng.choice([*batch, *prefilling])
            batch.remove(seq) if seq.batch else prefilling.remove(seq)
            policy.release(seq)
        if isinstance(answer, Refusal):
            assert account(policy) == before, "a refusal has changed something"
    for seq in [*batch, *prefilling]:
        policy.release(seq)
    used, _ = account(policy)
    assert (used.held, used.allocated, used.free) == (0, 0, used.total)


@pytest.mark.parametrize(("model", "rule"), CASES)
def test_pages_are_conserved_and_refusals_are_atomic(model, rule):
    for seed in range(25):
        calls(grouped(model, rule), random.Random(seed), 120)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "rule"), CASES)
def test_pages_are_conserved_over_10000_histories(model, rule):
    for seed in range(10_000):
        calls(grouped(model, rule), random.Random(seed), 40)


@pytest.mark.parametrize("scheduler", [MixedPrefill, ChunkedPrefill])
@pytest.mark.parametrize(("model", "rule"), CASES)
def test_fast_equals_slow_and_everybody_is_served(model, rule, scheduler):
    cost, recorders = analytic(overhead_s=1e-3), []
    rng = random.Random(1)
    requests = [Request(i, i * 10**9, rng.randint(1, 30), rng.randint(1, 30)) for i in range(40)]
    for fast_forward in (True, False):
        policy = grouped(model, rule)
        watched = policy if fast_forward else Traced(policy, lambda: None)
        plans = scheduler(watched, Recompute(), max_num_batched_tokens=40, max_num_seqs=30)
        recorders.append(simulate(requests, plans, cost, MAX_LEN, pool=policy.pool, fast_forward=fast_forward))
        assert policy.usage().allocated == 0
    assert_same(*recorders)
    totals = recorders[0].totals
    assert totals.finished + totals.rejected == 40 > totals.rejected
    assert totals.per_iteration.reserved >= 0 < totals.per_iteration.internal


def test_a_window_holds_its_tokens_and_gives_the_others_back():
    """A window of 10 in blocks of 4: a step to n slots reads from token n - 10 on."""
    policy = grouped("hybrid", "large_pages")
    seq = Sequence(0, Incoming(0, 0, 30, 1))
    assert isinstance(policy.admit([seq], 30), list)
    seq.num_slots = 30
    full, window = policy.group_tables(seq)
    assert (len(full.extents), len(window.extents), window.first) == (8, 8, 0)
    batch = passing_batch([seq])
    for slots in range(31, 60):
        policy.extend(batch)
        batch.extend(1)
        full, window = policy.group_tables(seq)
        assert window.first == (slots - 10) // 4 * 4
        assert len(window.extents) == -(-slots // 4) - window.first // 4
        assert (len(full.extents), full.first) == (-(-slots // 4), 0)


def test_page_sizes_are_those_of_the_rules():
    """vLLM's pages have gpt-oss's 18 layers, and 10 of Gemma 3: 52 layers of window take 6 pages, 8 of them padding."""
    pools = [OnePageSize(10**6, read_model(name).groups, 16) for name in ("gpt-oss-120b", "gemma-3-27b")]
    assert [(one._page, [column.width for column in one.columns]) for one in pools] == [
        (18 * 16, [18, 18]),
        (10 * 16, [10, 10, 10, 10, 10, 10, 2]),
    ]
    assert LargePages(10**6, read_model("gemma-3-27b").groups, 16)._large == 260 * 16
    with pytest.raises(InputError, match=r"block_size=16: a page is smaller than a state \(give 536 or more\)"):
        OnePageSize(10**6, read_model("qwen3-next-80b-a3b").groups, 16)


def test_what_it_cannot_serve_is_refused():
    policy = grouped("hybrid", "one_page_size")
    seqs = [Sequence(i, Incoming(0, 0, 8, 2)) for i in range(2)]
    with pytest.raises(UnsupportedError, match=r"workload\.num_seqs=1"):
        policy.admit(seqs, 8)
    for options, message in (
        ({"page_rule": "x"}, "page_rule=x"),
        ({"window_share": 0.5}, "window_share=0.5"),
        ({"watermark": 1}, "watermark=1"),
    ):
        with pytest.raises(InputError, match=message):
            Grouped(replace(policy.pool, num_layers=8), 4, **options)


def needless(groups, tokens):
    """The share of a uniform allocation of `tokens` in all layers that is wasted, with blocks of one token."""
    layers = sum(group.num_layers for group in groups)
    needed = sum(group.num_layers * min(tokens, group.window or tokens) for group in groups)
    return 1 - needed / (layers * tokens)


@pytest.mark.parametrize(("name", "percent"), [("gemma-2-27b", 25.0), ("ministral-8b", 56.25)])
def test_jenga_waste_of_windows_at_the_longest_sequence(name, percent):
    """vLLM's issue 11382: of an allocation of all layers' tokens, what lies outside the windows."""
    model = read_model(name)
    assert 100 * needless(model.groups, model.max_len) == pytest.approx(percent, abs=0.1)
