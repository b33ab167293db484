"""AIConfigurator's parquet tables, made by hand: units, shapes off the grid, rows that are there twice."""

import pytest
from import_fixtures import write_model, write_tables

from testbed.core.errors import InputError
from testbed.cost.profile import read_profile
from testbed.experiments.commands.imports import import_profile
from testbed.experiments.importers.aiconfigurator_tables import (
    Gemms,
    all_reduce_points,
    attention_rows,
    checked_rows,
    decode_points,
    prefill_points,
)

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")

GRID = (32, 64, 128, 512, 2048)


def gemms():
    rows = [("bfloat16", m, n, k, (m + n * k / 64) / 1000) for m in (1, 64) for n in GRID for k in GRID]
    rows += [("fp8", 1, 64, 64, 9.9)]
    return pd.DataFrame(rows, columns=["gemm_dtype", "m", "n", "k", "latency"]).assign(device="Toy", version="0.14")


def attention(rows, **fixed):
    names = ["batch_size", "num_heads", "num_key_value_heads", "isl", "step", "latency"]
    kinds = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "beam_width": 1, "head_dim": 16}
    return pd.DataFrame(rows, columns=names).assign(**{**kinds, **fixed})


def full(table, kv_dtype="bfloat16"):
    return attention_rows(table, 16, kv_dtype, [])


def decodes():
    """Milliseconds are batch x heads of K and V x length."""
    return attention([
        (batch, heads, kv, 1, step, batch * kv * (step + 1) / 1000)
        for batch in (1, 2, 4, 64) for heads, kv in ((1, 1), (2, 1), (2, 2), (4, 2)) for step in (15, 255)
    ])  # fmt: skip


def prefills():
    rows = [
        (batch, 4, 2, isl, 0, batch * isl * isl / 1e6)
        for batch, isl in ((1, 16), (32, 16), (1, 256), (4, 256))
    ]  # fmt: skip
    return attention([*rows, (1, 4, 2, 256, 0, 3 * 256 * 256 / 1e6), (1, 4, 2, 256, 0, 256 * 256 / 1e6)])


def test_gemm_times_are_summed_per_layer_and_interpolated():
    notes = []
    points = Gemms(gemms()).summed({"up": (128, 64, 1.0), "down": (64, 96, 0.5)}, notes)
    assert points == [[1, 1.5 + 128 + 48], [64, 96 + 128 + 48]]
    assert notes == []


@pytest.mark.parametrize(("column", "value"), [("latency", float("nan")), ("latency", 0.0), ("n", float("inf"))])
def test_a_number_that_is_none_is_named(tmp_path, column, value):
    table = gemms().astype({"n": float})
    table.loc[3, column] = value
    with pytest.raises(InputError, match=rf"gemm.parquet, row 3, column {column}: "):
        checked_rows(table, tmp_path / "gemm.parquet")


def test_a_hole_in_the_grid_is_named():
    holed = gemms().query("not (m == 1 and n == 128 and k == 64)")
    with pytest.raises(InputError, match="no time at m, n, k of 1, 128, 64"):
        Gemms(holed).summed({"up": (128, 64, 1.0)}, [])


def test_grid_gaps_and_extrapolation_are_reported():
    notes = []
    Gemms(gemms()).summed({"up": (256, 64, 1.0), "head": (4096, 16, 1.0)}, notes)
    assert notes == [
        "in a gap of the grid: up has n 256, measured were 128 and 512; linear between",
        "outside the grid: head has n 4,096, measured were 32 to 2,048",
        "outside the grid: head has k 16, measured were 32 to 2,048",
    ]


def test_decode_context_is_length_step_plus_one():
    notes = []
    points = {tuple(point[:2]): point[2] for point in decode_points(full(decodes()), 4, 2, notes)}
    assert points[4, 4 * 256] == 4 * 2 * 256
    assert not [note for note in notes if "read as" in note]


def test_more_kv_heads_are_read_as_a_larger_batch():
    notes = []
    points = {tuple(point[:2]): point[2] for point in decode_points(full(decodes()), 8, 8, notes)}
    assert points[1, 16] == 8 * 16  # a batch of 4 with 2 heads each
    assert points[16, 16 * 256] == 16 * 8 * 256
    assert "decode attention: 8 heads of K and V are read as 2 with 4 x the batch (1 queries each)" in notes


def test_prefill_counts_duplicate_rows_once():
    points = {tuple(point[:3]): point[3] for point in prefill_points(full(prefills()), 4, 2, [])}
    assert points[1, 256, 0] == pytest.approx(256 * 256 / 1000, rel=1e-4)
    assert set(points) == {(1, 16, 0), (32, 16, 0), (1, 256, 0), (4, 256, 0)}


def test_all_reduce_times_are_those_of_cuda_graphs():
    table = pd.DataFrame(
        [("vllm_graph", 2, 128, 0.005), ("vllm_eager", 2, 128, 0.04), ("vllm_graph", 4, 128, 0.007)],
        columns=["backend", "num_gpus", "message_size", "latency"],
    )
    notes = []
    assert all_reduce_points(table, 2, notes) == [[2, 256, 5.0]]
    assert all_reduce_points(table, 8, notes) == [[4, 256, 7.0]]
    assert notes == ["outside the grid: all-reduce over 8 GPUs, measured were [2, 4]; read as 4"]


def test_folder_of_tables_becomes_a_profile(tmp_path, capsys):
    folder = write_tables(tmp_path, {
        "gemm/vllm/0.14.0/gemm": gemms(),
        "attention/vllm/0.14.0/context_attention": prefills(),
        "attention/vllm/0.14.0/generation_attention": decodes(),
    })  # fmt: skip
    arguments = [str(folder), "--out", str(tmp_path / "p.json")]
    with pytest.raises(InputError, match="of no one model; name one by --model"):
        import_profile(arguments)
    import_profile([*arguments, "--model", str(write_model(tmp_path))])
    profile = read_profile(tmp_path / "p.json")
    assert profile["gpu"]["memory_bandwidth"] == 2e12
    assert profile["sections"]["linear"]["points"][0][0] == 1
    reported = capsys.readouterr().out
    assert "missing: mixed batches and unequal lengths" in reported
    assert "outside the grid" not in reported.replace("outside the grid: contexts", "")
