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
