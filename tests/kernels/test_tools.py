"""What calibrate and bench-kernels do without a GPU: load, read model shapes, lay out their files."""

import json
import pkgutil
from importlib import import_module

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import kernels
from kernels.measure.bench_report import Report
from kernels.measure.calibrate import dump, variants
from kernels.measure.shards import SHIPPED, shard_shape
from kernels.measure.sweeps import ragged_lens
from testbed.core.errors import InputError
from testbed.core.shapes import read_model
from testbed.cost.profile import read_profile


def test_every_module_loads() -> None:
    for module in pkgutil.walk_packages(kernels.__path__, "kernels."):
        import_module(module.name)


@pytest.mark.parametrize(("name", "num_gpus"), SHIPPED.items())
def test_shipped_profiles_are_of_the_configured_models(name: str, num_gpus: int) -> None:
    profile = read_profile(f"h200-{name}-tp{num_gpus}")
    assert profile["model"] == {field: getattr(read_model(name), field) for field in profile["model"]}
    assert profile["num_gpus"] == num_gpus


def test_shards_split_heads() -> None:
    shape = shard_shape(read_model("llama-3-70b"), 4)
    assert (shape.num_heads, shape.num_kv_heads) == (16, 2)
    with pytest.raises(InputError, match="do not split over 3 GPUs"):
        shard_shape(read_model("llama-3-8b"), 3)
    with pytest.raises(InputError, match="unknown model opt-1b"):
        read_model("opt-1b")


@pytest.mark.parametrize(("num_seqs", "mean"), [(1, 100), (7, 16), (64, 400), (256, 2000)])
def test_ragged_lengths_have_their_mean(num_seqs: int, mean: int) -> None:
    lens = ragged_lens(num_seqs, mean, 2048)
    assert len(lens) == num_seqs
    assert 1 <= min(lens) <= max(lens) <= 2048
    assert sum(lens) / num_seqs == pytest.approx(mean, rel=0.02)
    assert lens == ragged_lens(num_seqs, mean, 2048)


def test_profiles_are_written_one_point_a_line() -> None:
    profile = {"sections": {"a": {"points": [[1, "x", 2.5], [2, "y z", 3.0]]}}, "fit": {"points": []}}
    text = dump(profile)
    assert '[1, "x", 2.5]' in text
    assert json.loads(text) == profile


def test_the_report_says_what_was_missed(tmp_path, capsys) -> None:
    report = Report()
    report.add("decode", "8x64", "5 us", "10", True)
    report.add("decode", "8x128", "15 us", "10", False)
    report.write(tmp_path, {"device": "a GPU", "date": "today"})
    assert "| decode | 8x128 | 15 us | 10 | MISSED |" in (tmp_path / "h200.md").read_text()
    assert (tmp_path / "h200.csv").read_text().startswith("# device a GPU, date today\n")
    assert "MISSED" in capsys.readouterr().out


def test_variants_of_a_model_are_listed_once(monkeypatch) -> None:
    monkeypatch.setattr("kernels.measure.calibrate.has_wgmma", lambda head_size: True)
    found = variants(read_model("opt-13b"), 1)
    assert len({repr(variant) for variant in found}) == len(found)
    assert {source for source, _ in found} == {"decode.cu", "paper_decode.cu", "prefill.cu", "prefill_tma.cu"}
