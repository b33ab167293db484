"""Calibration of the engine times its layers, decodes alone, and prompts among decodes."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

import tiny_models as tiny  # noqa: E402
from arithmetic_profile import arithmetic_profile  # noqa: E402
from host_and_gpu import HostAndGpu  # noqa: E402
from ranks_in_threads import led_by_threads  # noqa: E402
from refusals import refuses  # noqa: E402
from tiny import OneMillisecond  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.core.request import Request  # noqa: E402
from testbed.core.specs import ServerSpec  # noqa: E402
from testbed.cost.model import Launch, Work  # noqa: E402
from testbed.cost.profile import (  # noqa: E402
    Choices,
    ProfileCost,
)
from testbed.cost.sections import check_profile  # noqa: E402
from testbed.engine.simulation import simulate  # noqa: E402
from testbed.kernels.engine import calibrate_engine, engine_iterations, loaded_model  # noqa: E402
from testbed.kernels.engine.loaded_model import Bench, ahead, in_turn  # noqa: E402
from testbed.kernels.engine.maths import PlainMaths  # noqa: E402
from testbed.kernels.engine.network import Network  # noqa: E402
from testbed.kernels.engine.parallel.shards import Shard  # noqa: E402
from testbed.kernels.engine.phases import Phase  # noqa: E402
from testbed.kernels.engine.records import Iteration  # noqa: E402
from testbed.kernels.engine.served_run import Options  # noqa: E402
from testbed.kernels.measure.all_reduce import NO_DATA_SHEET  # noqa: E402
from testbed.kernels.measure.network_sections import all_layers, without_attention  # noqa: E402
from testbed.kernels.measure.profile_sections import described  # noqa: E402
from testbed.memory.contiguous.reservations import ContiguousOracle  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.policy import PoolSpec  # noqa: E402


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_layers_run_without_attention(family):
    arch = tiny.architecture(family)
    network = Network(arch, tiny.weights(arch), PlainMaths())
    x, reported = torch.randn(5, arch.spec.hidden_size), torch.randn(5, 4, 8)
    once = all_layers(network, x, torch.arange(5), without_attention(reported))
    assert torch.isfinite(once).all()
    assert not torch.equal(once, x)
    again = all_layers(network, x, torch.arange(5), without_attention(reported))
    assert torch.equal(once, again)  # x is as it was


SMALL = {"CONTEXT": 20, "STEPS": 12, "LONGEST": 60, "VISITS": 3}
COUNTS = {
    "BATCHES": (1, 3),
    "PROMPTS": (5, 30, 200),
    "LAUNCHED": (5, 30),
    "DECODES": 2,
    "VISITED": (1, 2),
}


def small(monkeypatch):
    for module, values in ((engine_iterations, SMALL), (calibrate_engine, COUNTS)):
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


def tiny_bench(clock=None, num_ranks=1):
    arch, options = tiny.architecture("llama"), Options(clock=clock or tiny.StepClock(1e-3))
    if num_ranks == 1:
        return Bench(arch, tiny.weights(arch), options)
    own, *others = [Shard(arch, rank, num_ranks) for rank in range(num_ranks)]
    lead = led_by_threads([own, *others], [tiny.weights(arch, part=part) for part in others])
    return Bench(own.local, tiny.weights(arch, part=own), options, lead)


def test_each_number_of_tokens_is_measured_once_and_planned_in_one_iteration():
    for counts in (calibrate_engine.TOKENS, calibrate_engine.PROMPTS, calibrate_engine.BATCHES):
        assert sorted(set(counts)) == [*counts]
    assert set(calibrate_engine.LAUNCHED) <= set(calibrate_engine.PROMPTS)
    largest = max(calibrate_engine.PROMPTS) + max(calibrate_engine.VISITED)
    assert calibrate_engine.SIZES[-2] < largest <= loaded_model.MOST_TOKENS - 8
    assert calibrate_engine.SIZES[-1] == loaded_model.MOST_TOKENS


@pytest.mark.parametrize("planning", [ahead, in_turn])
@pytest.mark.parametrize("kind", [Paged, ContiguousOracle])
def test_decodes_are_full_batches_one_after_the_other(monkeypatch, kind, planning):
    small(monkeypatch)
    by_batch = engine_iterations.decodes_alone(tiny_bench(), kind, planning, (3, 1))
    assert list(by_batch) == [1, 3]
    for batch, iterations in by_batch.items():
        assert len(iterations) == SMALL["STEPS"] - 1 - engine_iterations.SETTLING
        assert {(one.work.decode_seqs, one.work.prefill) for one in iterations} == {(batch, ())}


def test_batches_without_room_are_left_out(monkeypatch, capsys):
    small(monkeypatch)
    monkeypatch.setattr(Bench, "has_room", lambda self, kind, phases, num_seqs: num_seqs < 3)
    by_batch = engine_iterations.decodes_alone(tiny_bench(), Paged, ahead, (1, 2, 3))
    assert list(by_batch) == [1, 2]
    assert "no room for 3 sequences" in capsys.readouterr().out
    visited = {1: [5], 2: [5]}
    by_visit = engine_iterations.prompts_with_decodes(
        tiny_bench(), in_turn, visited, OneMillisecond()
    )
    assert list(by_visit) == [(1, 5)]


@pytest.mark.parametrize("planning", [ahead, in_turn])
def test_prompts_come_one_by_one_among_so_many_decodes(monkeypatch, planning):
    small(monkeypatch)
    lengths_of = {2: [5, 30], 1: [5]}
    visits = engine_iterations.prompts_with_decodes(
        tiny_bench(), planning, lengths_of, OneMillisecond()
    )
    assert list(visits) == [(1, 5), (2, 5), (2, 30)]
    for (decodes, length), iterations in visits.items():
        assert len(iterations) == SMALL["VISITS"]
        works = {(one.work.decode_seqs, one.work.prefill) for one in iterations}
        assert works == {(decodes, ((length, 0),))}


def test_iterations_that_are_not_there_are_named():
    refuses(
        "no iteration with 3 decodes alone", engine_iterations.decodes_of, 3, [], error=InputError
    )
    wrong = engine_iterations.with_one_prompt, [], 2, 30
    refuses("2 decodes and a prompt of 30 tokens", *wrong, error=InputError)


@pytest.mark.parametrize(
    ("kind", "slots"), [(Paged, 51 + 41 + 51), (ContiguousOracle, 2 * (51 + 41) + 51)]
)
def test_pools_have_slots_for_the_longest_requests(monkeypatch, kind, slots):
    monkeypatch.setattr(loaded_model, "assemble", lambda *given: given)
    requests = [
        Request(i, arrival_ps=0, prompt_len=length, output_len=5)
        for i, length in enumerate((10, 20, 30))
    ]
    scheduler, pool, *_, options, _ = Bench(1, 2, Options(graphs=9)).engine(
        kind, in_turn, [Phase(requests)], 2
    )
    assert (pool, type(scheduler.policy), options.graphs) == (PoolSpec(slots, 51), kind, 2)
    assert scheduler.limits.max_num_batched_tokens == 2560


def test_a_pool_has_slots_for_its_largest_phase_and_not_for_the_longest_of_all():
    """Of 128 decodes of OPT-13B an H200 has room for the phase, not for the longest of all."""
    one, batches = Bench(1, 2, Options()), (8, 32, 128)
    phases = [engine_iterations.decoding(batch, first_id=1000 * batch) for batch in batches]
    together = one.pool(ContiguousOracle, phases, 128)
    assert together == one.pool(ContiguousOracle, phases[-1:], 128)
    assert together != one.pool(ContiguousOracle, phases[:-1], 128)


def test_excess_over_the_model_is_time_between_results_or_on_the_gpu():
    ones = [
        Iteration(
            start_s=0.0,
            duration_s=2e-3,
            host_s=0.5,
            waited_s=0.5,
            gpu_s=seconds,
            work=Work(1, 1, 1),
        )
        for seconds in (1.2e-3, 1.3e-3, 0.9e-3)
    ]
    assert calibrate_engine.beyond(ones, OneMillisecond()) == pytest.approx((1000, 1000, 1000))
    on_gpu = calibrate_engine.beyond(ones, OneMillisecond(), calibrate_engine.on_gpu)
    assert on_gpu == pytest.approx((200, -40, 280))


FIRST, WHOLE, WHOLE_PROMPT, READING = 6 * 10**7, 9 * 10**7, 4 * 10**8, 5 * 10**7


def host_and_gpu(monkeypatch):
    """A GPU that takes 0.5 ms for decodes, 0.7 ms with a prompt, more for sequences and tokens, and
    for attention as the arithmetic profile has it.
    """
    layers = tiny.SHAPES["llama"].num_layers
    return HostAndGpu(
        monkeypatch,
        FIRST,
        lambda has_prompts: WHOLE_PROMPT if has_prompts else WHOLE,
        READING,
        lambda decodes, stored, tokens: (
            (7 if tokens else 5) * 10**8 + 10**6 * (decodes + tokens + layers * stored // 4)
        ),
    )


def calibrated(monkeypatch, num_ranks=1):
    """The profile of a tiny model whose kernels take the times of the arithmetic one."""
    small(monkeypatch)
    one, spec = tiny_bench(host_and_gpu(monkeypatch), num_ranks), tiny.SHAPES["llama"]
    kernels = {"launched_eager": None, "launched_graph": None, "overhead": None}
    profile = arithmetic_profile(num_gpus=num_ranks, model=spec, **kernels)
    points = calibrate_engine.served_points(profile, spec, server(num_ranks), one)
    profile["sections"] |= described(points)
    check_profile(profile, "mine")
    return one, profile


def server(num_gpus):
    """All-reduces are in its iterations."""
    return None if num_gpus == 1 else ServerSpec("measured", NO_DATA_SHEET, num_gpus)


def test_launches_are_what_the_gpu_waits_for_and_what_it_hides(monkeypatch):
    one, profile = calibrated(monkeypatch)
    cost = ProfileCost(one.arch.spec, None, profile, Choices(spread="equal"))
    assert cost.software is None  # all of it is in the launches
    assert cost.launch(3, 0, 0) == Launch(FIRST + READING, WHOLE + READING)
    for decodes, tokens in ((1, 5), (2, 30)):
        launch = cost.launch(decodes, 1, tokens)
        assert launch.first_ps == pytest.approx(FIRST + READING, rel=0.03)  # contexts differ a bit
        assert launch.whole_ps == WHOLE_PROMPT + READING


def test_a_launch_that_waited_for_a_full_queue_takes_its_iteration_at_most():
    """With collectives in graphs: 17 ms of GPU and host, hidden behind a decode of 13 ms."""
    work = Work(1, 576, 576, prefill=((48, 0),))
    hidden = [Iteration(0.0, 0.015, 0.0, 0.0, 0.015, work, launch_s=0.024)] * 3
    in_turn = [Iteration(0.0, 0.017, 0.0, 0.0, 0.015, work, launch_s=0.016)] * 3
    parts = calibrate_engine.launch(hidden, in_turn, OneMillisecond(), calibrate_engine.on_gpu)
    assert parts["first"].median_us == pytest.approx(2_000)
    assert parts["whole"].median_us == pytest.approx(17_000)


def test_points_are_left_out_where_one_way_of_planning_had_no_room(monkeypatch):
    """An engine that plans in turn is made after another, whose memory may not be free yet."""
    rooms = iter([True, True, True, False, True, True, True, False, True, True])
    monkeypatch.setattr(Bench, "has_room", lambda *given: next(rooms))
    _, profile = calibrated(monkeypatch)
    prompts, decodes, graph = (
        {tuple(row[:3]) for row in profile["sections"][name]["points"]}
        for name in ("launch_prompts", "launch_decodes", "launched_graph")
    )
    assert {num_seqs for *_, num_seqs in prompts} == {2}
    assert {num_seqs for _, num_seqs, _ in decodes} == {1}
    assert {num_seqs for _, num_seqs, _ in graph} == {1, 3}


@pytest.mark.parametrize(("planning", "num_ranks"), [(ahead, 1), (in_turn, 1), (ahead, 2)])
def test_simulation_with_the_profile_takes_the_engines_time(monkeypatch, planning, num_ranks):
    one, profile = calibrated(monkeypatch, num_ranks)
    spec, choices = tiny.SHAPES["llama"], Choices(spread="equal")
    cost = ProfileCost(spec, server(num_ranks), profile, choices)
    # None arrives as an iteration begins: the last digit would decide which one it joins.
    arrivals = [(0, 20, 12), (9, 25, 9), (29, 20, 14), (33, 28, 20), (460, 20, 5)]
    requests = [Request(i, at * 10**8, *lengths) for i, (at, *lengths) in enumerate(arrivals)]
    phase = Phase(requests)
    engine, pool = one.engine(Paged, planning, [phase], 3), one.pool(Paged, [phase], 3)
    ours = simulate(requests, planning(Paged(pool), 3), cost, 128)
    real = engine.serve(requests).recorder
    for name in ("first_token_ps", "finish_ps"):
        measured, simulated = (side.requests.columns()[name] for side in (real, ours))
        assert simulated == pytest.approx(measured, rel=0.05)
    one.lead.close()
