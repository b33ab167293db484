"""What calibration of the engine times is the engine's layers, and the profile that it writes can be priced."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

import tiny_models as tiny  # noqa: E402

from kernels.engine import calibrate  # noqa: E402
from kernels.engine.maths import PlainMaths  # noqa: E402
from kernels.engine.network import Network  # noqa: E402
from testbed.core.shapes import read_model  # noqa: E402
from testbed.cost.model import Work  # noqa: E402
from testbed.cost.profile import ProfileCost, read_profile  # noqa: E402


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_all_layers_run_without_attention(family):
    arch = tiny.architecture(family)
    network = Network(arch, tiny.weights(arch), PlainMaths())
    x, said = torch.randn(5, arch.spec.hidden_size), torch.randn(5, 4, 8)
    once = calibrate.all_layers(network, x, torch.arange(5), said)
    assert torch.isfinite(once).all()
    assert not torch.equal(once, x)
    assert torch.equal(once, calibrate.all_layers(network, x, torch.arange(5), said))  # x is as it was


def test_padded_batches_cost_what_their_graph_costs(monkeypatch):
    """The profile is a shipped one with these sections in place of its own."""
    made = read_profile("h200-opt-13b-tp1")
    points = {name: [[n, float(n), float(n), float(n)] for n in (1, 512)] for name in ("linear", "output_head")}
    for name, rows in points.items():
        made["sections"][name]["points"] = rows
    made["sections"]["once_per_iteration"] = {
        "axes": ["num_tokens"],
        "points": [[1, 5.0, 5.0, 5.0], [512, 5.0, 5.0, 5.0]],
    }
    made["cuda_graph_sizes"] = calibrate.GRAPHS
    cost = ProfileCost(read_model("opt-13b"), None, made)
    write = ProfileCost(read_model("opt-13b"), None, "h200-opt-13b-tp1")._layers._write
    assert cost._layers.price(33, 33) - write(33) == (40 * 40 + 33 + 5) * 10**6
    assert cost.iteration(Work(3, 300, 100)) > 0


def test_an_iteration_with_a_prompt_pays_for_single_launches():
    made = read_profile("h200-opt-13b-tp1")
    plain = ProfileCost(read_model("opt-13b"), None, made)
    made["sections"]["launched_singly"] = {"axes": ["num_tokens"], "points": [[1, 900.0, 0, 0], [512, 100.0, 0, 0]]}
    cost = ProfileCost(read_model("opt-13b"), None, made)
    prompt, decode = Work(3, 300, 100, prefill=((1, 0),)), Work(3, 300, 100)
    assert cost.iteration(decode) == plain.iteration(decode)
    assert cost.iteration(prompt) - plain.iteration(prompt) == pytest.approx(900e6, rel=0.02)


def test_a_batch_of_nobody_is_what_was_asked_for():
    runner = tiny.engine(debug=False).runner
    batch = runner.idle_batch([5], [9, 9])
    assert [part.context_len for part in batch.parts] == [5, 9, 9]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 8, 8]
    before = runner.moves.pools.device.clone()
    assert runner.forward(batch).shape == (3, 61)
    assert torch.equal(before, runner.moves.pools.device)
