"""The ladder without a GPU: its sources compile, its metadata says what it should, its tables and figure are drawn."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import testbed.kernels.ladder  # noqa: E402
from testbed.core.errors import InputError  # noqa: E402
from testbed.kernels.ladder.batch import flatten, ladder_batch  # noqa: E402
from testbed.kernels.ladder.draw import MAKER, draw, table  # noqa: E402
from testbed.kernels.measure.fingerprint import read_rows, write_rows  # noqa: E402

SOURCES = ("v1_gather.cu", "v2_online.cu", "v3_batch.cu", "v4_ragged.cu")
ARCHS = ("sm_80", "sm_90")
VARIANTS = ((64, 7, 16, 0), (128, 4, 1, 1), (80, 12, 3, 0))
TABLES = np.array([[4, 2, 9], [7, 0, 9], [5, 3, 1]], np.int32)


def test_flat_tokens_have_sequence_position_and_slot() -> None:
    flat = flatten([3, 1, 1], [5, 4, 9], 1, TABLES, 4)
    assert flat["seq_ids"].tolist() == [0, 0, 0, 1, 2]
    assert flat["positions"].tolist() == [2, 3, 4, 3, 8]
    assert flat["slot_mapping"].tolist() == [18, 19, 8, 31, 4]
    assert flat["query_starts"].tolist() == [0, 3, 4, 5]
    assert {name: str(array.dtype) for name, array in flat.items()} == {
        "seq_ids": "int32", "positions": "int32", "slot_mapping": "int64", "query_starts": "int32",
        "context_lens": "int32",
    }  # fmt: skip


def test_waves_and_single_tokens_cover_the_batch() -> None:
    batch = ladder_batch([3, 2, 1], [5, 2, 9], 2, TABLES, 4, "cpu")
    assert batch.tokens == [(0, 3), (0, 4), (0, 5), (1, 1), (1, 2), (2, 9)]
    assert [wave.tokens.tolist() for wave in batch.waves] == [[0, 3, 5], [1, 4], [2]]
    assert [wave.context_lens.tolist() for wave in batch.waves] == [[3, 1, 9], [4, 2], [5]]
    assert batch.waves[1].block_tables.tolist() == TABLES[:2].tolist()
    assert batch.num_prompt_tokens == 5


@pytest.mark.parametrize(
    ("news", "contexts", "num_prompts", "message"),
    [
        ([1, 1], [4, 4], 0, "2 counts of new tokens, 2 contexts, 3 tables"),
        ([1, 1, 1], [4, 4, 4], 4, "num_prompts=4"),
        ([0, 1, 1], [4, 4, 4], 1, "sequence 0: has 0 new tokens in a context of 4"),
        ([5, 1, 1], [4, 4, 4], 1, "sequence 0: has 5 new tokens in a context of 4"),
        ([2, 2, 1], [4, 4, 4], 1, "sequence 1: has 2 new tokens .a decode has one"),
        ([1, 1, 1], [4, 4, 13], 0, "sequence 2: has 13 tokens, its table only 12"),
    ],
)
def test_invalid_batches_are_refused(news, contexts, num_prompts, message) -> None:
    with pytest.raises(InputError, match=message):
        flatten(news, contexts, num_prompts, TABLES, 4)


@pytest.mark.parametrize("source", SOURCES)
def test_ladder_sources_compile_without_spills(source: str) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from ptxas import resources

    for arch, (head_size, group, block_size, bf16) in zip(ARCHS * 2, VARIANTS + VARIANTS[:1], strict=True):
        defines = {"HEAD_SIZE": head_size, "GROUP": group, "BLOCK_SIZE": block_size, "BF16": bf16}
        found = resources(f"../ladder/{source}", defines, arch)
        assert found
        assert all(one.spill_bytes == 0 and one.registers <= 64 for one in found), found


def test_table_and_figure_are_built_from_rows(tmp_path: Path) -> None:
    about = "device a GPU, date today"
    times = [{"load": load, "step": step, "median_us": time}
             for load, steps in (("few", (80.0, 20.0, 5.0)), ("many", (900.0, 90.0, 45.0)))
             for step, time in zip(("v1", "v2", "v3"), steps, strict=True)]  # fmt: skip
    write_rows(tmp_path / "times.csv", times, about)
    write_rows(tmp_path / "right.csv", [{"step": "v1", "right": True}, {"step": "v2", "right": False}], about)
    text = draw(tmp_path)
    assert "| v2 | 20.0 (4.0x) | 90.0 (10.0x) |" in text
    assert "1 of 2 errors against the reference within tolerance. WRONG: v2, False." in text
    assert (tmp_path / "ladder.png").read_bytes()[:4] == b"\x89PNG"


def test_folder_without_rows_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"times.csv: is missing .`testbed ladder run` writes it"):
        draw(tmp_path)
    (tmp_path / "times.csv").write_text("load,step\n1,2\n")
    with pytest.raises(InputError, match="no table of `testbed ladder run`"):
        read_rows(tmp_path / "times.csv", MAKER)


def test_page_names_every_source_and_the_kept_times() -> None:
    page = (Path(testbed.kernels.ladder.__file__).parent / "README.md").read_text()
    assert all(source in page for source in SOURCES)
    kept = Path(testbed.kernels.__file__).parent / "results" / "ladder"
    _, rows = read_rows(kept / "times.csv", MAKER)
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        times.setdefault(row["load"], {})[row["step"]] = float(row["median_us"])
    assert table(times) in page
    assert table(times) in (kept / "ladder.md").read_text()
    assert all(row["right"] == "True" for row in read_rows(kept / "right.csv", MAKER)[1])
