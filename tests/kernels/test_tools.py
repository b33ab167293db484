"""Calibration, the kernels' bench and the ladder without a GPU: they load, compile and lay out
their files; kept times.
"""

import csv
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from refusals import refuses  # noqa: E402

import testbed.kernels  # noqa: E402
from testbed.core.errors import InputError  # noqa: E402
from testbed.core.shapes import read_model  # noqa: E402
from testbed.cost.profile import read_profile  # noqa: E402
from testbed.kernels.gpu_commands import (  # noqa: E402
    MEASUREMENTS,
    check_present,
    checked_models,
    imported,
)
from testbed.kernels.ladder.ladder_steps import LadderBatch  # noqa: E402
from testbed.kernels.measure import timing  # noqa: E402
from testbed.kernels.measure.bench_inputs import shard_shape  # noqa: E402
from testbed.kernels.measure.sweeps import ragged_lens  # noqa: E402
from testbed.kernels.verify.reference import Shape  # noqa: E402

MODULES = [
    import_module(module.name)
    for module in pkgutil.walk_packages(testbed.kernels.__path__, "testbed.kernels.")
]
SHIPPED = {
    "opt-13b": 1,
    "opt-66b": 4,
    "opt-175b": 8,
    "llama-13b": 1,
    "llama-3-8b": 1,
    "llama-3-70b": 4,
    "qwen2.5-0.5b": 1,
}


@pytest.mark.parametrize(("name", "num_gpus"), SHIPPED.items())
def test_shipped_profiles_match_the_configured_models(name: str, num_gpus: int) -> None:
    profile = read_profile(f"h200-{name}-tp{num_gpus}")
    assert profile["model"] == {
        field: getattr(read_model(name), field) for field in profile["model"]
    }
    assert profile["num_gpus"] == num_gpus


def test_tensor_parallel_shards_split_heads() -> None:
    assert shard_shape(read_model("llama-3-70b"), 4) == Shape(16, 2, 128, 16)
    assert shard_shape(read_model("llama-3-70b"), 16) == Shape(
        4, 1, 128, 16
    )  # each K and V on two GPUs
    refuses("do not split over 3 GPUs", shard_shape, read_model("llama-3-8b"), 3)
    refuses("14/2 heads do not split over 7 GPUs", shard_shape, read_model("qwen2.5-0.5b"), 7)
    refuses("model=opt-1b: ", read_model, "opt-1b")


@pytest.mark.parametrize(("num_seqs", "mean"), [(1, 100), (7, 16), (64, 400), (256, 2000)])
def test_ragged_lengths_have_the_requested_mean(num_seqs: int, mean: int) -> None:
    lens = ragged_lens(num_seqs, mean, 2048)
    assert len(lens) == num_seqs
    assert 1 <= min(lens) <= max(lens) <= 2048
    assert sum(lens) / num_seqs == pytest.approx(mean, rel=0.02)
    assert lens == ragged_lens(num_seqs, mean, 2048)


def test_every_measurement_has_a_name() -> None:
    measurements = {
        module.__name__.removeprefix("testbed.kernels."): module.MEASUREMENT
        for module in MODULES
        if "MEASUREMENT" in vars(module)
    }
    assert measurements.keys() == set(MEASUREMENTS.values())


def test_models_are_calibrated_on_as_many_gpus_as_each_says(tmp_path: Path) -> None:
    models = checked_models(["opt-13b", "llama-3-8b:2"], tp=4, out=tmp_path)
    assert models == [("opt-13b", 4), ("llama-3-8b", 2)]
    check_present(models, 4)
    refuses("opt-13b: ", check_present, models, 2)


SOURCES = ("v1_gather.cu", "v2_online.cu", "v3_batch.cu", "v4_ragged.cu")
VARIANTS = {"sm_80": (64, 7, 16, 0), "sm_90": (128, 4, 1, 1)}
KERNELS = Path(testbed.kernels.__file__).parent


def test_flat_tokens_and_waves_cover_the_batch() -> None:
    tables = torch.tensor([[4, 2, 9], [7, 0, 9], [5, 3, 1]], dtype=torch.int32)
    batch = LadderBatch([3, 2, 1], [5, 2, 9], 2, tables)
    assert batch.tokens == [(0, 3), (0, 4), (0, 5), (1, 1), (1, 2), (2, 9)]
    assert batch.seq_ids.tolist() == [0, 0, 0, 1, 1, 2]
    assert batch.positions.tolist() == [2, 3, 4, 0, 1, 8]
    assert batch.query_starts.tolist() == [0, 3, 5, 6]
    assert [wave.tokens.tolist() for wave in batch.waves] == [[0, 3, 5], [1, 4], [2]]
    assert [wave.context_lens.tolist() for wave in batch.waves] == [[3, 1, 9], [4, 2], [5]]
    assert batch.waves[1].block_tables.tolist() == tables[:2].tolist()


@pytest.mark.parametrize("source", SOURCES)
def test_ladder_sources_compile_without_spills(source: str) -> None:
    from ptxas import resources

    for arch, (head_size, group, block_size, bf16) in VARIANTS.items():
        defines = {"HEAD_SIZE": head_size, "GROUP": group, "BLOCK_SIZE": block_size, "BF16": bf16}
        kernels = resources(f"../ladder/{source}", defines, arch)
        assert kernels
        assert all(kernel.spill_bytes == 0 and kernel.registers <= 64 for kernel in kernels), (
            kernels
        )


def test_page_has_every_source_and_the_kept_times() -> None:
    page = (KERNELS / "ladder" / "README.md").read_text()
    assert all(source in page for source in SOURCES)
    lines = (KERNELS / "results" / "ladder" / "times.csv").read_text().splitlines()
    for row in csv.DictReader(lines[1:]):
        line = next(line for line in page.splitlines() if line.startswith(f"| {row['step']} |"))
        assert f" {float(row['median_us']):,.1f}" in line


def test_a_fingerprint_names_the_host(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    lines = "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nmodel name\t: another\n"
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: lines)
    assert timing.host() == "Some CPU @ 3 GHz, 7 cores"
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: "")  # as on other processors
    assert timing.host() == "unknown processor, 7 cores"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import torch_of_nobody", "gpu bench: needs torch_of_nobody and an NVIDIA GPU"),
        ("raise OSError('libtorch.so: no such file')", "cannot be imported: libtorch.so: no such"),
        ("from torch import nothing_of_the_kind", "cannot be imported: cannot import name"),
    ],
)
def test_a_torch_that_does_not_import_is_named(tmp_path, monkeypatch, source, line):
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.setattr(testbed.kernels, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "testbed.kernels.broken", raising=False)
    refuses(line, imported, "broken", "gpu bench", error=InputError)
