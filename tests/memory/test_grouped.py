"""Grouped and GroupedCaching: the contract by page rule and model, fast equals slow, worked
arithmetic, hits.
"""

import copy
import itertools
from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from histories import keeps_the_contract
from manual_driver import admit_and_prefill, extend, samples, sequence
from refusals import refuses
from releases import UNCACHED_FIRST, capping_windows, freeing_after_run
from same_runs import FEW_AND_MANY

from testbed.checks.fast_and_slow import differs
from testbed.core.errors import InputError
from testbed.core.layers import KvGroup
from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, disband, passing_batch
from testbed.core.shapes import read_model
from testbed.core.slots import Grant, Refusal
from testbed.experiments.paper.studies.groups import needed_bytes
from testbed.experiments.runs.compose import configured
from testbed.memory.groups.grouped import Grouped
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.groups.grouped_output_caching import GroupedOutputCaching
from testbed.memory.groups.large_pages import LargePages
from testbed.memory.groups.page_rules import OnePageSize
from testbed.memory.policy import PoolSpec
from testbed.run.simulate import run
from testbed.sched.chunked import ChunkedPrefill
from testbed.vllm.releases import DEFAULT

MODELS = {
    "full": (KvGroup("full", num_layers=4, slot_bytes=64),),
    "window": (KvGroup("window", num_layers=3, slot_bytes=64, window=10),),
    "hybrid": (
        KvGroup("full", num_layers=2, slot_bytes=64),
        KvGroup("window", num_layers=6, slot_bytes=64, window=10),
    ),
    "uneven": (
        KvGroup("full", num_layers=2, slot_bytes=64),
        KvGroup("window", num_layers=5, slot_bytes=64, window=21),
    ),
    "states": (
        KvGroup("full", num_layers=1, slot_bytes=64),
        KvGroup("state", num_layers=3, slot_bytes=0, window=None, state_bytes=250),
    ),
}
RULES = ("one_page_size", "large_pages", "fixed_split")
KINDS = {
    "plain": Grouped,
    "caching": GroupedCaching,
    "dropping": partial(GroupedCaching, num_dropped_blocks=1),
}
OUTPUTS = {
    "outputs": partial(GroupedOutputCaching, release=UNCACHED_FIRST),
    "outputs by last use": GroupedOutputCaching,
}
RUNNING = {"plain": partial(Grouped, **freeing_after_run())}
RUNNING["caching"] = partial(GroupedCaching, **freeing_after_run())
RUNNING["outputs"] = partial(GroupedOutputCaching, **freeing_after_run())
CASES = [
    (model, rule)
    for model in MODELS
    for rule in RULES
    if (model, rule) != ("states", "fixed_split")
]


NAMES = [*MODELS], RULES, [*KINDS]


def is_drawn(case):
    """True for cases that have every pair of a model, a page rule and a kind; the others are
    slow.
    """
    numbers = [names.index(name) for names, name in zip(NAMES, case, strict=True)]
    return sum(numbers) % len(KINDS) == 0 or case == ("states", "one_page_size", "plain")


CONTRACTS = [
    pytest.param(*case, marks=[] if is_drawn(case) else pytest.mark.slow)
    for case in ((*case, kind) for case in CASES for kind in KINDS)
]


def grouped(model, rule, num_slots=120):
    return Grouped(pools(model, [(num_slots, 64)])[0], 4, rule)


def pools(model, sizes=((150, 64), (70, 50), (40, 64))):
    groups = MODELS[model]
    layers = sum(group.num_layers for group in groups if not group.state_bytes)
    return [PoolSpec(*size, layer_bytes=64, num_layers=layers, groups=groups) for size in sizes]


@pytest.mark.parametrize("num_examples", FEW_AND_MANY)
@pytest.mark.parametrize(("model", "rule", "kind"), CONTRACTS)
def test_policy_keeps_the_contract(model, rule, kind, num_examples, golden):
    make = partial(KINDS[kind], block_size=4, page_rule=rule)
    keeps_the_contract(golden, f"{model} {rule} {kind}", make, pools(model), num_examples)


@pytest.mark.parametrize("num_examples", FEW_AND_MANY)
@pytest.mark.parametrize("kind", RUNNING)
def test_a_policy_that_frees_after_the_run_keeps_the_contract(kind, num_examples, golden):
    make = partial(RUNNING[kind], block_size=4)
    keeps_the_contract(golden, f"hybrid running {kind}", make, pools("hybrid"), num_examples)


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("kind", RUNNING)
def test_fast_equals_slow_where_blocks_are_freed_after_the_run(kind):
    make = partial(RUNNING[kind], block_size=4)
    broken = differs(make, pools("hybrid")[0], [ChunkedPrefill])
    assert broken is None, f"{broken}\n" + "\n".join(broken.calls)


@pytest.mark.parametrize("num_examples", FEW_AND_MANY)
@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_policy_that_caches_outputs_keeps_the_contract(model, kind, num_examples, golden):
    make = partial(OUTPUTS[kind], block_size=4)
    keeps_the_contract(golden, f"{model} {kind}", make, pools(model), num_examples)


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize(
    ("model", "kind"), list(zip(MODELS, itertools.cycle(OUTPUTS), strict=False))
)
def test_fast_equals_slow_where_outputs_are_cached(model, kind):
    broken = differs(partial(OUTPUTS[kind], block_size=4), pools(model)[0], [ChunkedPrefill])
    assert broken is None, f"{broken}\n" + "\n".join(broken.calls)


# Every pair of a model, a page rule and a kind; all three together are slow.
TRIPLES = [
    pytest.param(*case, kind, marks=[] if (place + number) % 2 else pytest.mark.slow)
    for place, case in enumerate(CASES)
    for number, kind in enumerate(["plain", "caching"])
]


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize(("model", "rule", "kind"), TRIPLES)
def test_fast_equals_slow(model, rule, kind):
    broken = differs(
        partial(KINDS[kind], block_size=4, page_rule=rule), pools(model)[0], [ChunkedPrefill]
    )
    assert broken is None, f"{broken}\n" + "\n".join(broken.calls)


@pytest.mark.parametrize("kind", [*KINDS, *OUTPUTS])
@pytest.mark.parametrize("model", MODELS)
def test_sequences_are_served_in_turn_as_far_as_one_after_the_other(model, kind):
    """Members of a batch get their pages exactly if each gets its own when those before it have
    theirs, whether or not they give some back.
    """
    num_refused = 0
    for seed in range(2):
        lengths = Random(seed)
        policy = {**KINDS, **OUTPUTS}[kind](pools(model)[0], 4)
        seqs = admitted(policy, (lengths.randrange(8, 40) for _ in itertools.count()))
        for num_tokens in (lengths.randrange(1, 8) for _ in range(8)):
            num_served = num_granted(policy, seqs, num_tokens)
            for count in {1, lengths.randint(1, len(seqs)), num_served, num_served + 1}:
                if 0 < count <= len(seqs):
                    assert is_granted(policy, seqs[:count], num_tokens) == (count <= num_served)
            num_refused += num_served < len(seqs)
            extend(policy, seqs[:num_served], num_tokens)
    assert num_refused


def admitted(policy, prompt_lens):
    """As many sequences as the policy admits, each with 8 tokens of its prompt."""
    seqs = []
    for seq in (sequence(i, prompt_len) for i, prompt_len in enumerate(prompt_lens)):
        if isinstance(admit_and_prefill(policy, [seq], 8), Refusal):
            return seqs
        seqs.append(seq)


def is_granted(policy, seqs, num_tokens):
    """True if a batch of these is extended."""
    policy, seqs = copy.deepcopy((policy, seqs))
    return isinstance(policy.extend(passing_batch(seqs), num_tokens), Grant)


def num_granted(policy, seqs, num_tokens):
    """The number of sequences extended, one after the other, before one is refused."""
    policy, seqs = copy.deepcopy((policy, seqs))
    answers = (policy.extend(passing_batch([seq]), num_tokens) for seq in seqs)
    refused = (i for i, answer in enumerate(answers) if isinstance(answer, Refusal))
    return next(refused, len(seqs))


def test_a_window_holds_its_tokens_and_gives_the_others_back():
    """A window of 10 in blocks of 4: a step to n slots reads from token n - 10 on."""
    policy = grouped("hybrid", "large_pages")
    seq = sequence(0, 30)
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


def test_what_the_chunk_before_reads_is_kept_where_blocks_are_freed_after_the_run():
    """A window of 10 in blocks of 4; the chunk before a step may still run when it is granted."""
    policy = Grouped(pools("hybrid", [(120, 64)])[0], 4, **freeing_after_run())
    seq = sequence(0, 30)
    policy.admit([seq], 20)
    seq.num_slots = 20
    batch, begins = passing_batch([seq]), [0, 20, 30, 31, 32, 33, 34]
    firsts = []
    for num_tokens in [10, 1, 1, 1, 1, 1]:
        policy.extend(batch, num_tokens)
        batch.extend(num_tokens)
        firsts.append(policy.group_tables(seq)[1].first)
    assert firsts == [max(begin - 9, 0) // 4 * 4 for begin in begins[:6]]


def test_page_sizes_are_those_of_the_rules():
    """vLLM's pages have gpt-oss's 18 layers, and 10 of Gemma 3: 52 layers of window take 6
    pages.
    """
    pools = [
        OnePageSize(10**6, read_model(name).groups, 16) for name in ("gpt-oss-120b", "gemma-3-27b")
    ]
    assert [(pool.page_units, [column.width for column in pool.columns]) for pool in pools] == [
        (18 * 16, [18, 18]),
        (10 * 16, [10, 9, 9, 9, 9, 8, 8]),
    ]
    assert LargePages(10**6, read_model("gemma-3-27b").groups, 16)._large == 260 * 16
    with pytest.raises(InputError, match=r"block_size=16: "):
        OnePageSize(10**6, read_model("qwen3-next-80b-a3b").groups, 16)


@pytest.mark.parametrize("num_tokens", [1000, 1025, 4096, 9000, 20000])
def test_large_pages_lose_the_rest_of_the_last_large_page_of_each_group(num_tokens):
    """Gemma-3 admits fewer sequences than the pool has bytes for, such as 9 of 9.8: both groups
    round up to whole large pages, and nothing else is lost.
    """
    groups = read_model("gemma-3-27b").groups
    pool = PoolSpec(40_000, 131_072, layer_bytes=1, num_layers=62, groups=groups)
    policy = Grouped(pool, 16, page_rule="large_pages", watermark=0)
    num_admitted = 0
    while True:
        seq = Sequence(num_admitted, Incoming(num_admitted, 0, num_tokens))
        if isinstance(policy.admit([seq], num_tokens), Refusal):
            break
        seq.num_slots = seq.num_stored = num_tokens
        num_admitted += 1
    small_pages = -(-num_tokens // 16)  # of each group; the window moves on when the plan has run
    per_large_page = [260 // group.num_layers for group in groups]  # small pages in a large one
    needed = [-(-(num_admitted + 1) * small_pages // number) for number in per_large_page]
    assert sum(needed) > policy.usage().total // (260 * 16)
    needed = [-(-num_admitted * small_pages // number) for number in per_large_page]
    assert sum(needed) <= policy.usage().total // (260 * 16)


def some_of(random, pages):
    """Some of these pages of each column."""
    return [[page for page in column if random.random() < 0.4] for column in pages]


def can_be_taken(pool, needed, returned, revived):
    """`fits`, done: idle pages that are not held again go back, and large pages are counted."""
    pool = copy.deepcopy(pool)
    for column in range(2):
        for page in revived[column]:
            pool.set_idle(column, page, idle=False)
        pool.put(column, returned[column])
    for page, column in list(pool.idle[0].items()):
        pool.set_idle(column, page, idle=False)
        pool.put(column, [page])
    return pool.short(needed) is None


def test_large_pages_fit_where_they_can_be_taken():
    answers = Counter()
    for seed in range(150):
        random, held, idle = Random(seed), [[], []], [[], []]
        pool = LargePages(40 * 4, MODELS["hybrid"], block_size=4)
        for _ in range(random.randint(1, 20)):
            column, count = random.randrange(2), random.randint(1, 3)
            if pool.short([count * (i == column) for i in range(2)]) is None:
                held[column] += pool.take(column, count)
        for column, pages in enumerate(some_of(random, held)):
            for page in pages:
                pool.set_idle(column, page, idle=True)
                held[column].remove(page)
                idle[column].append(page)
        question = [random.randint(0, 6), random.randint(0, 3)], some_of(random, held)
        revived = some_of(random, idle)
        fits = pool.fits(*question, revived)
        assert fits == can_be_taken(pool, *question, revived)
        answers[fits] += 1
    assert min(answers[True], answers[False]) > 20


def test_several_sequences_and_wrong_page_options_are_refused():
    policy = grouped("hybrid", "one_page_size")
    seqs = samples(8)
    refusal = policy.admit(seqs, 8)
    assert refusal.is_final
    assert "one sequence a request" in refusal.reason
    assert policy.max_seq_len(8, 2) == 0 < policy.max_seq_len(8, 1)
    for options, message in (
        ({"page_rule": "x"}, "page_rule=x"),
        ({"window_share": 0.5}, "window_share=0.5"),
        ({"watermark": 1}, "watermark=1"),
    ):
        refuses(message, Grouped, replace(policy.pool, num_layers=8), 4, **options)


@pytest.mark.parametrize(
    ("name", "text", "percent"),
    [
        ("gemma-2-27b", 8192, 25.0),
        ("ministral-8b", 131072, 56.25),
        ("llama-3.2-11b-vision", 43, 79.6),
    ],
)
def test_jenga_waste_of_a_uniform_allocation(name, text, percent):
    """vLLM's issue 11382, blocks of one token: all layers have slots for all tokens, those of an
    image included.

    Windows at the longest sequence; one image and a short question of 43 tokens (33 to 53 are
    within the tolerance).
    """
    model = read_model(name)
    tokens = text + (model.states.num_tokens if model.states else 0)
    uniform = model.num_layers * tokens * model.slot_bytes
    assert 100 * (1 - needed_bytes(model, text) / uniform) == pytest.approx(percent, abs=0.1)


UNIT = 2144
FULL, WINDOW = (
    KvGroup("full", num_layers=2, slot_bytes=64),
    KvGroup("window", num_layers=2, slot_bytes=64, window=9),
)
STATE = KvGroup("state", num_layers=2, slot_bytes=0, window=None, state_bytes=128)


def caching(groups, num_blocks, rule="one_page_size", **options):
    """A pool of num_blocks blocks of 4 tokens in two layers."""
    return GroupedCaching(
        PoolSpec(
            num_slots=num_blocks * 4,
            max_len=400,
            tiers=(),
            layer_bytes=64,
            num_layers=2,
            num_gpus=1,
            groups=groups,
        ),
        4,
        page_rule=rule,
        watermark=0,
        **options,
    )


def served(policy, number, num_tokens, prompt=0):
    """A sequence whose whole prompt of tokens from `prompt` on is stored; and how many of them it
    found.
    """
    seq = sequence(number, num_tokens, prompt_ids=tuple(range(prompt, prompt + num_tokens)))
    (grant,) = admit_and_prefill(policy, [seq], num_tokens)
    policy.check()
    return seq, grant.num_cached


def stepped(policy, seq):
    """The answer to one more slot."""
    batch = passing_batch([seq])
    answer = policy.extend(batch)
    batch.extend(int(isinstance(answer, Grant)))
    disband(batch)
    return answer


@pytest.mark.parametrize("model", ["qwen3-next-80b-a3b", "nemotron-h-8b"])
@pytest.mark.parametrize(
    ("unit", "prompt_len"),
    [(UNIT, 3784), (UNIT, 12362), (UNIT, 18770), (16_384, 32_800), (16_384, 20_000)],
)
def test_hits_of_a_prompt_sent_twice_are_those_of_vllm(model, unit, prompt_len, tmp_path):
    """vLLM's hybrid models find whole units; EAGLE and MTP drop the last of them (vllm-ascend 9247
    and 10710: of 32,800 tokens 32,768 are found, with MTP 16,384; of 20,000 16,384, and none).
    """
    ids = " ".join(map(str, range(-(-prompt_len // 16))))
    rows = [f"{prompt_len},4,{second},{ids}" for second in (0, 100)]
    (tmp_path / "twice.csv").write_text(
        "\n".join(["input_tokens,output_tokens,arrival_s,prompt_ids", *rows, ""])
    )
    words = (
        f"model={model}",
        "policy=grouped_caching",
        f"policy.block_size={unit}",
        "scheduler=chunked",
        "model.max_len=65536",
        "cost=analytic",
        "trace=csv",
        f"trace.path={tmp_path}/twice.csv",
        "arrivals=replay",
    )
    for num_dropped in (0, 1):
        config = configured((*words, f"policy.num_dropped_blocks={num_dropped}"))
        counters = run(config).summary["counters"]
        assert counters["hit_tokens"] == max(0, (prompt_len - 1) // unit - num_dropped) * unit
        assert counters["prompts"] == 2


def test_a_hit_ends_where_all_groups_have_what_the_next_token_reads():
    """A window of 9 in blocks of 4 needs the last two blocks; the pages of the others were evicted
    first.
    """
    policy = caching((FULL, WINDOW), 40)
    seq, num_found = served(policy, 0, 41)
    assert num_found == 0
    policy.release(seq)
    assert served(policy, 1, 30)[1] == 28
    assert served(policy, 2, 41)[1] == 40
    gone = [
        page
        for page, (_, column) in policy.cache.index.by_page.items()
        if column == 1 and page in policy.pages.idle[0]
    ]
    for page in gone:
        policy.cache.index.forget(page)
        policy.cache.free_idle(1, page)
    policy.check()
    assert [served(policy, 3 + i, length)[1] for i, length in enumerate((17, 30, 37, 41))] == [
        0,
        28,
        28,
        40,
    ]


def test_a_state_is_found_from_the_next_iteration_on():
    """K and V are written before they are read in one iteration; a state is not."""
    for groups, num_found in (((FULL,), 8), ((FULL, STATE), 0)):
        policy = caching(groups, 40)
        seqs = [sequence(i, 9, prompt_ids=tuple(range(9))) for i in range(3)]
        policy.admit(seqs[:1], 9)
        policy.publish(seqs[0], 9)
        assert policy.lookup(seqs[1]).num_cached(9) == num_found
        seqs[0].num_slots = seqs[0].num_stored = 9
        stepped(policy, seqs[0])
        assert policy.lookup(seqs[2]).num_cached(9) == 8


def test_a_page_that_another_sequence_holds_is_not_free_for_a_step():
    policy = caching((WINDOW,), 4)
    first, _ = served(policy, 0, 13)
    assert isinstance(stepped(policy, first), Grant)  # gives its first block back
    second, num_found = served(policy, 1, 13)
    assert (num_found, policy.usage().free + policy.usage().cached) == (12, 0)
    first.num_slots = first.num_stored = 16  # the last block is full
    assert stepped(policy, first) is Refusal.LATER
    policy.release(second)
    assert isinstance(stepped(policy, first), Grant)


def test_idle_pages_of_one_group_are_evicted_for_another():
    """Nine large pages of 2 blocks of `full` or 1 of `wide`; what `wide` leaves behind its window
    is unspecified.
    """
    policy = caching(
        (FULL, KvGroup("wide", num_layers=4, slot_bytes=64, window=4)), 18, "large_pages"
    )
    first, _ = served(policy, 0, 24)
    assert policy.usage().free == 0
    assert isinstance(stepped(policy, first), Grant)
    assert (policy.usage().free, policy.usage().cached) == (0, 3 * 16)
    assert served(policy, 1, 8, prompt=100)[1] == 0
    assert policy.usage().cached == 0


def with_outputs(num_pages, **options):
    """Pages of 4 tokens in two layers: a block takes one of full attention, and one of a window."""
    pool = PoolSpec(num_pages * 4, max_len=400, layer_bytes=64, num_layers=2, groups=(FULL, WINDOW))
    return GroupedOutputCaching(pool, 4, **options)


def generated(policy, number, prompt_len, num_tokens):
    """A sequence without ids that has generated so many tokens."""
    seq = sequence(number, prompt_len)
    admit_and_prefill(policy, [seq], prompt_len)
    for _ in range(num_tokens):
        stepped(policy, seq)
        seq.num_stored += 1
    return seq


def test_a_preempted_sequence_finds_what_it_has_generated():
    """Of 19 tokens 4 blocks are full; another sequence with such a prompt finds nothing."""
    policy = with_outputs(40)
    seq = generated(policy, 0, prompt_len=9, num_tokens=10)
    policy.release(seq)
    assert policy.lookup(sequence(1, 9)).num_cached(9) == 0
    assert policy.lookup(seq).num_cached(20) == 16


@pytest.mark.parametrize(("release", "num_found"), [(UNCACHED_FIRST, 8), (DEFAULT, 0)])
def test_pages_without_content_are_taken_first_or_in_their_turn(release, num_found):
    """A sequence leaves two full blocks, then one leaves a block that is not full. By last use the
    next one takes two pages of the first.
    """
    policy = with_outputs(6, release=release)
    first, rest = generated(policy, 0, 8, 0), generated(policy, 1, 3, 0)
    policy.release(first)
    policy.release(rest)
    generated(policy, 2, prompt_len=3, num_tokens=0)
    policy.check()
    assert policy.lookup(first).num_cached(9) == num_found


def test_equal_contents_are_found_until_their_last_copy_is_gone():
    policy = with_outputs(40)
    prompt = {"prompt_ids": tuple(range(9))}
    seqs = [sequence(number, 9, **prompt) for number in range(2)]
    for seq in seqs:
        policy.admit([seq], 9, None)
    for seq in seqs:
        seq.num_slots = seq.num_stored = 9
        policy.publish(seq, 9)
    for seq in seqs:
        assert policy.lookup(sequence(5, 9, **prompt)).num_cached(9) == 8
        policy.check()
        for page in [page for pages in policy._tables[seq.seq_id].pages for page in pages[:2]]:
            policy.cache.index.forget(page)
    assert policy.lookup(sequence(5, 9, **prompt)).num_cached(9) == 0
    policy.check()


@pytest.mark.parametrize(("order", "is_granted"), [((0, 1), False), ((1, 0), True)])
def test_what_a_later_sequence_gives_back_comes_too_late_for_one_before_it(order, is_granted):
    """One page is left of 11. The short sequence takes two in its next step, and the long one gives
    a page of its window back.
    """
    policy = with_outputs(11)
    seqs = generated(policy, 0, 4, 0), generated(policy, 1, 15, 0)
    batch = passing_batch([seqs[i] for i in order])
    assert isinstance(policy.extend(batch), Grant) == is_granted
    disband(batch)


def test_what_windows_give_back_is_older_than_a_sequence_that_is_preempted_for_want_of_room():
    """A long sequence gives a page back in its next step, and a short one needs two, for which
    there is no room until a third is preempted. That page is taken first, then one of the third's.
    """
    policy = with_outputs(14)
    long, short, preempted = (
        generated(policy, number, prompt_len, 0) for number, prompt_len in enumerate((15, 4, 8))
    )
    wanted = [(long, 1), (short, 1)]
    assert policy.reserve_in_turn(wanted) == 1
    policy.release(preempted)
    assert policy.reserve_in_turn(wanted) == 2
    batch = passing_batch([long, short])
    assert isinstance(policy.extend(batch), Grant)
    disband(batch)
    assert policy.lookup(preempted).num_cached(9) == 4


@pytest.mark.parametrize(("most", "ends"), [(None, False), (4, True)])
def test_an_eviction_ends_refusals_where_a_prompt_may_need_less_without_its_hit(most, ends):
    """A sequence leaves two blocks of four pages, and another takes half of them."""
    policy = with_outputs(8, **capping_windows(most))
    policy.release(generated(policy, 0, prompt_len=8, num_tokens=0))
    batch = passing_batch([generated(policy, 1, prompt_len=7, num_tokens=0)])
    policy.extend(batch)
    batch.extend(1)
    assert policy.extend(batch).ends_refusals is ends
    disband(batch)


@pytest.mark.parametrize("kind", [*KINDS.values(), *OUTPUTS.values()])
def test_extending_what_was_reserved_in_turn_leaves_what_extending_alone_does(kind):
    tables = []
    for reserves in (False, True):
        policy = kind(pools("hybrid")[0], 4)
        seqs = [sequence(0, 23), sequence(1, 30)]
        for seq in seqs:
            admit_and_prefill(policy, [seq], seq.prompt_len)
        batch = passing_batch(seqs)
        for _ in range(12):
            if reserves:
                assert policy.reserve_in_turn([(seq, 1) for seq in seqs]) == 2
            ends = policy.extend(batch).ends_refusals
            batch.extend(1)
            tables.append((policy.usage(), ends, *map(policy.group_tables, seqs)))
    assert tables[:12] == tables[12:]


def test_the_manager_of_vllm_has_pages_of_one_size():
    refuses(
        "policy=grouped_caching",
        GroupedOutputCaching,
        pools("hybrid")[0],
        4,
        page_rule="large_pages",
    )
