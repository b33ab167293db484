"""Samples and beams of the engine, however memory is managed; policies and recorded beams serve the
simulator too.
"""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402
from example_policy import Slabs  # noqa: E402
from faulty_policies import SHAPE  # noqa: E402
from refusals import refuses  # noqa: E402
from two_sizes import TwoSizes  # noqa: E402

from testbed.core.errors import PlugInError  # noqa: E402
from testbed.core.slots import Copy, Extent  # noqa: E402
from testbed.engine.wall_clock import StepClock  # noqa: E402
from testbed.kernels.engine import runner  # noqa: E402
from testbed.kernels.engine.layout import Blocks, Extents, layout_of  # noqa: E402
from testbed.kernels.engine.pool_moves import independent  # noqa: E402
from testbed.kernels.engine.random_numbers import uniforms  # noqa: E402
from testbed.kernels.engine.random_weights import random_weights  # noqa: E402
from testbed.kernels.engine.records import write_run  # noqa: E402
from testbed.kernels.engine.sampler import TopP, best_of, survive  # noqa: E402
from testbed.kernels.engine.served_run import Options, assemble  # noqa: E402
from testbed.kernels.engine.sizes import BUCKETS, bucket, context_bucket  # noqa: E402
from testbed.memory.capabilities import capabilities_of  # noqa: E402
from testbed.memory.contiguous.reservations import ContiguousMax  # noqa: E402
from testbed.memory.layouts import BlockLayout  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.sched.preemption import Recompute, Swap  # noqa: E402

LENGTHS = [(9, 12), (10, 13), (7, 14)]


def plain_beams(arch, w, prompt, k, num_tokens):
    """Beam search over whole sequences, the best k of all continuations at a time."""
    beams = [(0.0, list(prompt))]
    for _ in range(num_tokens):
        ahead = []
        for total, tokens in beams:
            scores = torch.log_softmax(tiny.dense_logits(arch, w, torch.tensor(tokens))[-1], dim=0)
            ahead += [
                (total + float(score), [*tokens, token]) for token, score in enumerate(scores)
            ]
        beams = sorted(ahead, key=lambda candidate: -candidate[0])[:k]
    return beams


@pytest.mark.parametrize(
    ("policy", "rule", "slots", "debug"),
    [
        (partial(Paged, block_size=4), Recompute, 512, False),
        (partial(Paged, block_size=1), Recompute, 512, True),
        (ContiguousMax, Recompute, 2048, False),
        (partial(Paged, block_size=4), Swap, 80, False),
        (partial(Paged, block_size=4), Recompute, 80, True),
    ],
)
def test_beams_equal_a_plain_beam_search(policy, rule, slots, debug):
    engine = tiny.engine(
        "opt", policy, partial(tiny.mixed, preemption=rule()), tiny.pool(slots, 512), debug
    )
    requests = tiny.requests(LENGTHS, num_seqs=3, beam=True)
    prompts = [engine.runner.token_buffers.prompt(r.incoming) for r in requests]
    records = engine.serve(requests)
    assert not engine.runner.sampler._beams
    arch = tiny.architecture("opt")
    if slots == 80:
        assert records.recorder.totals.swaps + records.recorder.totals.recomputes > 0
    assert records.beams
    for r, prompt in zip(requests, prompts, strict=True):
        want = plain_beams(arch, tiny.weights(arch), prompt, 3, r.output_len)
        assert sorted(records.outputs[r.request_id]) == sorted(
            tokens[r.prompt_len :] for _, tokens in want
        )


def test_parallel_samples_are_independent_of_memory_policy():
    outputs = []
    for policy, rule, slots in [
        (partial(Paged, block_size=4), Recompute, 512),
        (ContiguousMax, Recompute, 2048),
        (partial(Paged, block_size=4), Swap, 104),
        (partial(Paged, block_size=2), Recompute, 104),
    ]:
        engine = tiny.engine(
            "qwen2", policy, partial(tiny.mixed, preemption=rule()), tiny.pool(slots, 512)
        )
        records = engine.serve(tiny.requests(LENGTHS, num_seqs=4))
        outputs.append(records.outputs)
        if slots == 104:
            assert records.recorder.totals.swaps + records.recorder.totals.recomputes > 0
    assert all(output == outputs[0] for output in outputs)
    assert len({tuple(tokens) for tokens in outputs[0][1]}) == 4


def test_beam_ties_prefer_lower_parent_then_lower_token():
    best = [[(4, -1.0), (2, -1.0)], [(1, -1.0), (0, -2.0)], [(9, -1.0), (8, -1.0)]]
    after = survive([0.0, 0.0, 0.0], best)
    assert after.parents == ((0, 2),)
    assert (after.tokens, after.totals) == ([2, 1, 4], [-1.0] * 3)
    assert [token for token, _ in best_of(torch.zeros(1, 50), 3)[0]] == [0, 1, 2]
    assert [token for token, _ in best_of(torch.tensor([[2.0, 3.0, 3.0, 2.0, 4.0]]), 3)[0]] == [
        4,
        1,
        2,
    ]


def at(rule, logits, numbers):
    """The tokens of the rows of logits at one number each."""
    rows = torch.arange(len(numbers))
    return rule.tokens_at(logits, rows, torch.tensor(numbers, dtype=torch.float32))


def test_top_p_samples_only_likely_tokens():
    logits = torch.log(torch.tensor([[0.1, 0.5, 0.3, 0.1]])).repeat(400, 1)
    numbers = uniforms([TopP(seed=1).key(i, 0, 0) for i in range(400)]).tolist()
    chosen = at(TopP(top_p=0.75, seed=1), logits, numbers).tolist()
    assert set(chosen) == {1, 2}
    assert chosen.count(1) == pytest.approx(250, abs=40)
    of_all = at(TopP(seed=1), logits, numbers).tolist()
    assert [of_all.count(token) for token in range(4)] == pytest.approx([40, 200, 120, 40], abs=40)
    assert at(TopP(seed=1), logits[:200], numbers[:200]).tolist() == of_all[:200]


def test_draws_are_exact_at_the_edges():
    alike = torch.zeros(1, 2)  # two tokens of the same logit
    every_token = TopP(temperature=1.0, top_p=1.0)
    assert at(every_token, alike, [0.0]).item() == 0
    assert at(every_token, alike, [0.499]).item() == 0
    assert at(every_token, alike, [0.5]).item() == 1
    assert at(every_token, alike, [1.0]).item() == 1
    half = TopP(temperature=1.0, top_p=0.5)  # the first token alone has that share
    assert at(half, alike, [0.9]).item() == 0


def test_a_token_without_a_share_is_never_drawn():
    some = torch.log(torch.tensor([[0.0, 0.4, 0.0, 0.6, 0.0]]))
    drawn = [at(TopP(), some, [number]).item() for number in (0.0, 0.39, 0.41, 1.0)]
    assert drawn == [1, 1, 3, 3]


def test_a_high_temperature_makes_logits_alike():
    apart = torch.tensor([[0.0, 10.0]])
    assert at(TopP(temperature=1.0), apart, [0.4]).item() == 1
    assert at(TopP(temperature=1000.0), apart, [0.4]).item() == 0


def test_a_draw_depends_on_its_key_alone():
    """SplitMix64 of its words: from the state 0 its first output is 0xE220A8397B1DCDAF."""
    first = 0xE220A8397B1DCDAF >> 40
    assert uniforms([[0]]).tolist() == [first / 2**24]
    keys = [TopP(seed=seed).key(i, j, 4) for seed in (1, 2) for i in range(3) for j in range(3)]
    together = uniforms(keys).tolist()
    assert together == [uniforms([key]).item() for key in keys]
    assert len(set(together)) == len(keys)


def test_random_numbers_are_uniform_in_every_word():
    for place in range(5):
        keys = np.zeros((4096, 5), np.uint64)
        keys[:, place] = np.arange(4096)
        numbers = uniforms(keys)
        assert 0 <= numbers.min() < numbers.max() < 1
        counts, _ = np.histogram(numbers, bins=16, range=(0, 1))
        assert ((counts - 256) ** 2 / 256).sum() < 45  # chi square of 15: 1 in 10,000 is above
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.06


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, 1.01)]
)
def test_temperatures_and_shares_without_meaning_are_refused(temperature, top_p):
    refuses(
        "must be above 0, and above 0 and at most 1", TopP, temperature, top_p, error=ValueError
    )


def test_graph_bucket_is_at_least_the_batch_size():
    assert [bucket(n) for n in (1, 3, 8, 33, 256)] == [1, 4, 8, 40, 256]
    assert all(bucket(n) >= n for n in range(1, BUCKETS[-1] + 1))
    assert [context_bucket(n, 1000) for n in (1, 256, 257, 600, 1000)] == [
        256,
        256,
        512,
        1000,
        1000,
    ]
    assert context_bucket(50, 100) == 100


def test_block_and_extent_layouts_map_slots_alike():
    blocks, extents = Blocks(2, 4), Extents(2)
    place = blocks.place([Extent(8, 4), Extent(0, 8)], "x")
    assert blocks.slots(place, np.arange(12)).tolist() == [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]
    assert blocks.rows(place, np.array([1]), 0).tolist() == [[17, 21]]
    place = extents.place([Extent(10, 5)], "x")
    assert extents.rows(place, np.array([2]), 0).tolist() == [[22, 27]]
    live = [[Extent(0, 10)], [Extent(10, 5)]]
    assert extents.rows_of_slots(np.array([12]), live).tolist() == [[22, 27]]
    assert extents.rows_of_slots(np.array([15]), live).shape == (0, 2)


def test_unreadable_tables_are_refused():
    refuses(
        "partial blocks of 4 slots",
        lambda: Blocks(2, 4).place([Extent(2, 4)], "sequence 7"),
        error=PlugInError,
    )
    two = [Extent(0, 4), Extent(8, 4)]
    refuses("one extent per sequence", Extents(2).place, two, "sequence 7", error=PlugInError)


def test_dependent_copies_are_separate_launches():
    writes_4 = Copy(src=0, dst=4, length=4)
    elsewhere = Copy(src=8, dst=12, length=4)
    reads_4 = Copy(src=4, dst=16, length=4)
    launches = independent((writes_4, elsewhere, reads_4))
    assert launches == [[writes_4, elsewhere], [reads_4]]


def test_warm_up_changes_no_slots_or_outputs(monkeypatch):
    """It writes no slot, keeps no sequence, and the run after it says what it would have said."""
    plain, batches, eager = tiny.engine(), [], runner.eager

    def watched(*parts):
        forward = eager(*parts)
        return lambda batch: batches.append(batch) or forward(batch)

    monkeypatch.setattr(runner, "eager", watched)
    warm = tiny.engine(warm=(5, 300))
    assert [[part[1:] for part in batch.parts] for batch in batches] == [
        [(n, 0, n, 1, ()) for n in sizes] for sizes in ([5], [128, 128, 44])
    ]
    assert [[place.num_slots for place in batch.places] for batch in batches] == [
        [16],
        [128, 128, 48],
    ]
    assert not warm.runner.token_buffers.tokens
    assert not warm.runner.tables
    requests = tiny.requests([(30, 9), (7, 20), (50, 5)])
    assert warm.serve(requests).outputs == plain.serve(requests).outputs
    assert torch.equal(
        warm.runner.moves.pools.device.isnan(), plain.runner.moves.pools.device.isnan()
    )


class BlocksOf(Slabs):
    """Slabs whose tables say that they have a regular form."""

    def layout(self):
        return BlockLayout(self.slab_size)


@pytest.mark.parametrize(
    ("size", "built"), [(1, 1), (256, 256), (512, 256), (300, 150), (768, 192)]
)
def test_blocks_too_large_for_the_kernels_are_halved(size, built):
    memory = capabilities_of(BlocksOf(tiny.pool(2000), size))
    assert layout_of(memory, 2).block_size == built


def test_an_odd_block_beyond_the_kernels_is_refused():
    memory = capabilities_of(BlocksOf(tiny.pool(2000), 257))
    refuses("block_size=257: ", layout_of, memory, 2)


def test_tables_without_a_regular_form_have_blocks_of_one_slot():
    memory = capabilities_of(TwoSizes(tiny.pool(2000), large=16, small=4))
    assert layout_of(memory, 2).block_size == 1


def test_example_policy_generates_correct_tokens():
    """Under the debug mode, with preemptions, every request gets the tokens that it gets alone."""

    policy = partial(Slabs, slab_size=8)
    engine = tiny.engine(policy=policy, spec=tiny.pool(120))
    records = engine.serve(tiny.requests(tiny.LENGTHS))
    assert records.recorder.totals.recomputes > 0
    alone = [
        tiny.engine(policy=policy).serve([r]).outputs[r.request_id]
        for r in tiny.requests(tiny.LENGTHS)
    ]
    assert [records.outputs[i] for i in range(len(tiny.LENGTHS))] == alone


@pytest.mark.gpu
@pytest.mark.parametrize("debug", [True, False])
def test_example_policy_generates_correct_tokens_on_a_gpu(debug):
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    outputs = []
    for num_slots in (4096, 120):
        pool, arch = tiny.pool(num_slots), tiny.Architecture(SHAPE, "opt")
        scheduler = tiny.mixed(Slabs(pool, slab_size=8))
        weights = random_weights(arch, 0, "cuda", torch.float16)
        options = Options(debug, clock=StepClock(), graphs=0 if debug else 16)
        records = assemble(scheduler, pool, arch, weights, options).serve(
            tiny.requests(tiny.LENGTHS)
        )
        outputs.append([len(records.outputs[i][0]) for i in range(len(tiny.LENGTHS))])
    assert records.recorder.totals.recomputes > 0
    assert outputs[0] == outputs[1] == [output for _, output in tiny.LENGTHS]


def test_simulator_replays_recorded_beams_of_the_engine(tmp_path):
    """With the engine's record for its beam model it copies, saves and holds the same, iteration by
    iteration.
    """
    pytest.importorskip("simpy", reason="SimPy is not installed")
    from tiny import OneSecond

    from testbed.engine.simulation import simulate
    from testbed.run.metrics import summarize
    from testbed.sched.beam_search import RecordedBeams

    spec, requests = tiny.pool(4096), tiny.requests([(30, 9), (7, 2), (50, 12), (5, 1)], 2, True)
    records = tiny.engine(spec=spec).serve(requests)
    write_run(tmp_path / "a" / "run", records, 4096, None, {})
    lines = (tmp_path / "a" / "run" / "beams.csv").read_text().splitlines()
    assert lines[0] == "request,step,parent,child"
    steps = [tuple(map(int, line.split(",")[:2])) for line in lines[1:]]
    assert steps == sorted(steps)
    assert {*steps} >= {(0, 9), (1, 2), (2, 12)}  # every search that has a step says where it ends
    assert {request_id for request_id, _ in steps} == {0, 1, 2}
    beams = RecordedBeams(str(tmp_path / "a" / "run" / "beams.csv"))
    simulated = simulate(
        requests, tiny.mixed(Paged(spec)), OneSecond(), 128, beams=beams, fast_forward=False
    )
    assert simulated.totals.copies > 0
    assert summarize(simulated, 4096) == summarize(records.recorder, 4096)
