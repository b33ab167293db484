"""What calibration of the engine times is the engine's layers, decodes alone, and prompts that
visit decodes.
"""

import gc
import weakref
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

import tiny_models as tiny  # noqa: E402
from refusals import refuses  # noqa: E402
from tiny import OneMillisecond  # noqa: E402

from testbed.core.request import Request  # noqa: E402
from testbed.cost.model import Work  # noqa: E402
from testbed.kernels.engine import calibrate  # noqa: E402
from testbed.kernels.engine.maths import PlainMaths  # noqa: E402
from testbed.kernels.engine.network import Network  # noqa: E402
from testbed.kernels.engine.records import Iteration  # noqa: E402
from testbed.kernels.engine.serve import Options  # noqa: E402
from testbed.kernels.measure.network_sections import all_layers, without_attention  # noqa: E402
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


def tiny_bench(family):
    arch = tiny.architecture(family)
    return calibrate.Bench(arch, tiny.weights(arch), Options(clock=tiny.StepClock(1e-3)))


@pytest.mark.parametrize("kind", [Paged, ContiguousOracle])
def test_decode_benchmark_contains_only_full_batches(monkeypatch, kind):
    monkeypatch.setattr(calibrate, "CONTEXT", 20)
    monkeypatch.setattr(calibrate, "STEPS", 12)
    monkeypatch.setattr(calibrate, "LONGEST", 100)
    iterations = calibrate.decodes_alone(tiny_bench("llama"), kind, 3)
    assert len(iterations) == 12 - 1 - calibrate.SETTLING
    assert {(iteration.work.decode_seqs, iteration.work.prefill) for iteration in iterations} == {
        (3, ())
    }
    refuses("measured iterations: there are none", calibrate.beyond, [], OneMillisecond())


@pytest.mark.parametrize(
    ("kind", "slots"), [(Paged, 51 + 41 + 51), (ContiguousOracle, 2 * (51 + 41) + 51)]
)
def test_pools_have_slots_for_the_longest_requests(monkeypatch, kind, slots):
    monkeypatch.setattr(calibrate, "assemble", lambda *given: given)
    requests = [Request(i, 0, length, 5) for i, length in enumerate((10, 20, 30))]
    scheduler, pool, *_, options, _ = calibrate.Bench(1, 2, Options(graphs=9)).engine(
        kind, requests, 2
    )
    assert (pool, type(scheduler.policy), options.graphs) == (PoolSpec(slots, 51), kind, 2)
    assert scheduler.max_num_batched_tokens == 2560
    monkeypatch.setattr(calibrate, "served_decodes", lambda engine, requests: requests)
    iterations = calibrate.decodes_alone(calibrate.Bench(1, 2, Options()), kind, 3)
    assert iterations == [Request(i, 0, length, 64) for i, length in enumerate((370, 171, 803))]


class ByWork(OneMillisecond):
    """Every number of the work counts differently."""

    def iteration(self, work):
        return (
            10**7 * work.decode_seqs
            + 10**4 * work[1]
            + 10 * work[2]
            + sum(10**9 * new + past for new, past in work.prefill)
        )


def test_prefill_benchmark_adds_single_prompts_to_decodes(monkeypatch):
    for name, value in {"CONTEXT": 20, "DECODES": 2, "VISITS": 2}.items():
        monkeypatch.setattr(calibrate, name, value)
    prompts = [
        (2, ((3, 0),)),
        (2, ((3, 1),)),
        (1, ((3, 0),)),
        (2, ((3, 0), (7, 0))),
        (2, ()),
        (2, ((9, 0),)),
        (2, ((7, 0),)),
    ]
    ones = [Iteration(0.0, 0.0, 0.0, 0.0, 0.0, Work(n, prefill=prefill)) for n, prefill in prompts]
    seen, served = [], SimpleNamespace(records=SimpleNamespace(iterations=ones))
    served.serve = seen.append
    monkeypatch.setattr(
        calibrate.Bench, "engine", lambda self, *given: seen.append(given) or served
    )
    by_length = calibrate.prompts_with_decodes(tiny_bench("opt"), [3, 7], ByWork())
    assert by_length == {3: [ones[0]], 7: [ones[6]]}
    step, at_ps, requests = 2 * 10**7 + 40 * 10**4 + 200, 4 * 40 * 10**9, []
    for i, length in enumerate((3, 7, 3, 7)):
        requests.append(Request(2 + i, at_ps, length, 1))
        at_ps += 2 * (step + length * 10**9)
    requests = [*(Request(i, 0, 20, at_ps // step + 1) for i in range(2)), *requests]
    assert seen == [(Paged, requests, 3), requests]


def test_measured_iterations_are_not_disturbed_by_garbage():
    class Cycle:
        pass

    cycle = Cycle()
    cycle.self, seen = cycle, weakref.ref(cycle)
    del cycle
    gc.disable()
    with calibrate.undisturbed():
        assert seen() is None
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    gc.enable()


def test_excess_over_the_model_is_gpu_time():
    ones = [
        Iteration(0.0, 1.0, 0.5, 0.5, seconds, Work(1, 1, 1))
        for seconds in (1.2e-3, 1.3e-3, 0.9e-3)
    ]
    assert calibrate.beyond(ones, OneMillisecond()) == pytest.approx((200, -40, 280))
