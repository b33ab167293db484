"""The ladder without a GPU: its sources compile, its batches have the right metadata, its page has the kept times."""

import csv
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import testbed.kernels  # noqa: E402
from testbed.kernels.ladder.steps import LadderBatch  # noqa: E402

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
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from ptxas import resources

    for arch, (head_size, group, block_size, bf16) in VARIANTS.items():
        defines = {"HEAD_SIZE": head_size, "GROUP": group, "BLOCK_SIZE": block_size, "BF16": bf16}
        found = resources(f"../ladder/{source}", defines, arch)
        assert found
        assert all(one.spill_bytes == 0 and one.registers <= 64 for one in found), found


def test_page_has_every_source_and_the_kept_times() -> None:
    page = (KERNELS / "ladder" / "README.md").read_text()
    assert all(source in page for source in SOURCES)
    lines = (KERNELS / "results" / "ladder" / "times.csv").read_text().splitlines()
    for row in csv.DictReader(lines[1:]):
        line = next(line for line in page.splitlines() if line.startswith(f"| {row['step']} |"))
        assert f" {float(row['median_us']):,.1f}" in line
