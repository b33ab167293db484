"""What calibration of the engine times is the engine's layers, and the profile that it writes gives costs."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

import tiny_models as tiny  # noqa: E402
from refusals import refuses  # noqa: E402
from ticks import OneMillisecond  # noqa: E402

from testbed.core.shapes import read_model  # noqa: E402
from testbed.cost.model import Work  # noqa: E402
from testbed.cost.profile import ProfileCost, read_profile  # noqa: E402
from testbed.kernels.engine import calibrate  # noqa: E402
from testbed.kernels.engine.maths import PlainMaths  # noqa: E402
from testbed.kernels.engine.network import Network  # noqa: E402
from testbed.kernels.engine.records import Iteration  # noqa: E402
from testbed.kernels.engine.serve import Options  # noqa: E402
from testbed.memory.contiguous.contiguous import ContiguousOracle  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_layers_run_without_attention(family):
    arch = tiny.architecture(family)
    network = Network(arch, tiny.weights(arch), PlainMaths())
    x, reported = torch.randn(5, arch.spec.hidden_size), torch.randn(5, 4, 8)
    once = calibrate.all_layers(network, x, torch.arange(5), reported)
    assert torch.isfinite(once).all()
    assert not torch.equal(once, x)
    assert torch.equal(once, calibrate.all_layers(network, x, torch.arange(5), reported))  # x is as it was


def test_padded_batch_takes_the_time_of_its_graph(monkeypatch):
    """The profile is a shipped one with these sections in place of its own."""
    built = read_profile("h200-opt-13b-tp1")
    points = {name: [[n, float(n), float(n), float(n)] for n in (1, 512)] for name in ("linear", "output_head")}
    for name, rows in points.items():
        built["sections"][name]["points"] = rows
    built["sections"]["once_per_iteration"] = {
        "axes": ["num_tokens"],
        "points": [[1, 5.0, 5.0, 5.0], [512, 5.0, 5.0, 5.0]],
    }
    built["cuda_graph_sizes"] = calibrate.GRAPHS
    cost = ProfileCost(read_model("opt-13b"), None, built)
    write = ProfileCost(read_model("opt-13b"), None, "h200-opt-13b-tp1")._layers._write
    assert cost._layers.time_ps(33, 33) - write(33) == (40 * 40 + 33 + 5) * 10**6
    assert cost.iteration(Work(3, 300, 100)) > 0


def test_prefill_iteration_adds_eager_launch_time():
    built = read_profile("h200-opt-13b-tp1")
    plain = ProfileCost(read_model("opt-13b"), None, built)
    built["sections"]["launched_eager"] = {"axes": ["num_tokens"], "points": [[1, 900.0, 0, 0], [512, 100.0, 0, 0]]}
    cost = ProfileCost(read_model("opt-13b"), None, built)
    prompt, decode = Work(3, 300, 100, prefill=((1, 0),)), Work(3, 300, 100)
    assert cost.iteration(decode) == plain.iteration(decode)
    assert cost.iteration(prompt) - plain.iteration(prompt) == pytest.approx(900e6, rel=0.02)


def test_decode_iteration_adds_graph_launch_time():
    built = read_profile("h200-opt-13b-tp1")
    plain = ProfileCost(read_model("opt-13b"), None, built)
    rows = [["paged", 1, 300.0, 0, 0], ["paged", 9, 100.0, 0, 0], ["contiguous", 1, 700.0, 0, 0]]
    built["sections"]["launched_graph"] = {"axes": ["kernel", "num_seqs"], "points": rows}
    cost = ProfileCost(read_model("opt-13b"), None, built)
    decode, prompt = Work(5, 300, 100), Work(5, 300, 100, prefill=((1, 0),))
    assert cost.iteration(decode) - plain.iteration(decode) == 200 * 10**6
    assert cost.iteration(prompt) == plain.iteration(prompt)
    span = cost.decode(decode)
    assert [span.first_ps + k * span.growth_ps for k in range(3)] == [
        cost.iteration(Work(5, 300 + 5 * k, 100 + k)) for k in range(3)
    ]


def tiny_bench(family):
    arch = tiny.architecture(family)
    return calibrate.Bench(arch, tiny.weights(arch), Options(clock=tiny.StepClock(1e-3)))


@pytest.mark.parametrize("kind", [Paged, ContiguousOracle])
def test_decode_benchmark_contains_only_full_batches(monkeypatch, kind):
    monkeypatch.setattr(calibrate, "CONTEXT", 20)
    monkeypatch.setattr(calibrate, "STEPS", 12)
    monkeypatch.setattr(calibrate, "LONGEST", 100)
    found = calibrate.decodes_alone(tiny_bench("llama"), kind, 3)
    assert len(found) == 12 - 1 - calibrate.SETTLING
    assert {(one.work.decode_seqs, one.work.prefill) for one in found} == {(3, ())}
    refuses("measured iterations: there are none", calibrate.beyond, [], OneMillisecond())


def test_prefill_benchmark_adds_single_prompts_to_decodes(monkeypatch):
    monkeypatch.setattr(calibrate, "CONTEXT", 20)
    monkeypatch.setattr(calibrate, "DECODES", 2)
    found = calibrate.prompts_with_decodes(tiny_bench("opt"), [3, 7], OneMillisecond())
    assert {length: len(ones) for length, ones in found.items()} == {3: calibrate.VISITS, 7: calibrate.VISITS}


def test_excess_over_the_model_is_gpu_time():
    ones = [Iteration(0.0, 1.0, 0.5, 0.5, seconds, Work(1, 1, 1)) for seconds in (1.2e-3, 1.3e-3, 0.9e-3)]
    assert calibrate.beyond(ones, OneMillisecond()).median_us == pytest.approx(200)
