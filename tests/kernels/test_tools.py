"""What calibrate and bench-kernels do without a GPU: load, read model shapes, lay out their files."""

import pkgutil
from importlib import import_module

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import testbed.kernels
from testbed.core.errors import InputError
from testbed.core.shapes import read_model
from testbed.cost.profile import read_profile
from testbed.kernels.commands import MEASUREMENTS, measure
from testbed.kernels.measure.all_reduce import predictions, require_gpus
from testbed.kernels.measure.bench_inputs import shard_shape
from testbed.kernels.measure.sweeps import ragged_lens


def test_every_kernel_module_can_be_imported() -> None:
    for module in pkgutil.walk_packages(testbed.kernels.__path__, "testbed.kernels."):
        import_module(module.name)


SHIPPED = {"opt-13b": 1, "opt-66b": 4, "opt-175b": 8, "llama-13b": 1, "llama-3-8b": 1, "llama-3-70b": 4,
           "qwen2.5-0.5b": 1}  # fmt: skip


@pytest.mark.parametrize("requested", [[2, 8], [1], [0]])
def test_all_reduce_over_missing_gpus_is_refused(requested: list[int]) -> None:
    with pytest.raises(InputError, match=rf"--gpus {requested[-1]}: this machine has 4 GPUs \(choose from 2 to 4\)"):
        require_gpus(requested, found=4)


def test_all_reduces_are_predicted_from_the_next_smaller_number_of_gpus() -> None:
    points = {2: [[2, 1000, 4.0, 3.9, 4.1]], 4: [[4, 1000, 7.0, 6.9, 7.1]], 8: [[8, 1000, 9.0, 8.9, 9.1]]}
    expected = [(4, 1000, 7.0, 4 * 1.5), (8, 1000, 9.0, 7 * (7 / 8) / (3 / 4))]  # a ring's share (n - 1) / n
    assert predictions(points) == [pytest.approx(row, rel=1e-6) for row in expected]


@pytest.mark.parametrize(("name", "num_gpus"), SHIPPED.items())
def test_shipped_profiles_match_the_configured_models(name: str, num_gpus: int) -> None:
    profile = read_profile(f"h200-{name}-tp{num_gpus}")
    assert profile["model"] == {field: getattr(read_model(name), field) for field in profile["model"]}
    assert profile["num_gpus"] == num_gpus


def test_tensor_parallel_shards_split_heads() -> None:
    shape = shard_shape(read_model("llama-3-70b"), 4)
    assert (shape.num_heads, shape.num_kv_heads) == (16, 2)
    with pytest.raises(InputError, match="do not split over 3 GPUs"):
        shard_shape(read_model("llama-3-8b"), 3)
    with pytest.raises(InputError, match="model opt-1b: is unknown"):
        read_model("opt-1b")


@pytest.mark.parametrize(("num_seqs", "mean"), [(1, 100), (7, 16), (64, 400), (256, 2000)])
def test_ragged_lengths_have_the_requested_mean(num_seqs: int, mean: int) -> None:
    lens = ragged_lens(num_seqs, mean, 2048)
    assert len(lens) == num_seqs
    assert 1 <= min(lens) <= max(lens) <= 2048
    assert sum(lens) / num_seqs == pytest.approx(mean, rel=0.02)
    assert lens == ragged_lens(num_seqs, mean, 2048)


def test_measurements_are_chosen_by_name() -> None:
    for name, (module, _) in MEASUREMENTS.items():
        found = import_module(f"testbed.kernels.{module}").MEASUREMENT
        assert callable(found.rows), name
        assert found.about, name
    with pytest.raises(InputError, match="invalid choice: 'speed'"):
        measure(["speed"])
