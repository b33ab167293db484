"""AIConfigurator's parquet tables, made by hand: units, shapes off the grid, rows that are there twice."""

import pytest
from import_fixtures import write_model

from experiments.commands import import_profile
from experiments.importers.aiconfigurator_attention import decode_points, prefill_points
from experiments.importers.aiconfigurator_gemm import Gemms
from experiments.importers.aiconfigurator_links import all_reduce_points
from testbed.core.errors import InputError
from testbed.cost.profile import read_profile

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")

GRID = (32, 64, 128, 512, 2048)
SHEET = """
gpu: {mem_bw: 2.0e12, mem_capacity: 85899345920, bfloat16_tc_flops: 3.12e14}
node: {pcie_bw: 3.2e10, intra_node_bw: 3.0e11}
"""


def gemms():
    rows = [("bfloat16", m, n, k, (m + n * k / 64) / 1000) for m in (1, 64) for n in GRID for k in GRID]
    rows += [("fp8", 1, 64, 64, 9.9)]
    return pd.DataFrame(rows, columns=["gemm_dtype", "m", "n", "k", "latency"]).assign(device="Toy", version="0.14")


def attention(rows, **fixed):
    names = ["batch_size", "num_heads", "num_key_value_heads", "isl", "step", "latency"]
    kinds = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "beam_width": 1, "head_dim": 16}
    return pd.DataFrame(rows, columns=names).assign(**{**kinds, **fixed})


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


def test_products_are_microseconds_of_a_layer_and_linear_between():
    notes = []
    points = Gemms(gemms()).summed({"up": (128, 64), "down": (64, 96)}, notes)
    assert points == [[1, 2 + 128 + 96], [64, 128 + 128 + 96]]
    assert notes == []


def test_gaps_and_reaches_of_the_grid_are_told():
    notes = []
    Gemms(gemms()).summed({"up": (256, 64), "head": (4096, 16)}, notes)
    assert notes == [
        "in a gap of the grid: up has n 256, measured were 128 and 512; linear between",
        "outside the grid: head has n 4,096, measured were 32 to 2,048",
        "outside the grid: head has k 16, measured were 32 to 2,048",
    ]


def test_a_decode_of_length_step_plus_one():
    notes = []
    points = {tuple(point[:2]): point[2] for point in decode_points(decodes(), 4, 2, 16, notes)}
    assert points[4, 4 * 256] == 4 * 2 * 256
    assert not [note for note in notes if "read as" in note]


def test_more_heads_of_k_and_v_than_measured_are_a_larger_batch():
    notes = []
    points = {tuple(point[:2]): point[2] for point in decode_points(decodes(), 8, 8, 16, notes)}
    assert points[1, 16] == 8 * 16  # a batch of 4 with 2 heads each
    assert points[16, 16 * 256] == 16 * 8 * 256
    assert "decode attention: 8 heads of K and V are read as 2 with 4 x the batch (1 queries each)" in notes


def test_prefill_counts_a_row_that_is_there_twice_once():
    points = {tuple(point[:3]): point[3] for point in prefill_points(prefills(), 4, 2, 16, [])}
    assert points[1, 256, 0] == pytest.approx(256 * 256 / 1000, rel=1e-4)
    assert set(points) == {(1, 16, 0), (32, 16, 0), (1, 256, 0), (4, 256, 0)}


def test_all_reduces_are_those_of_cuda_graphs_and_count_elements():
    table = pd.DataFrame(
        [("vllm_graph", 2, 128, 0.005), ("vllm_eager", 2, 128, 0.04), ("vllm_graph", 4, 128, 0.007)],
        columns=["backend", "num_gpus", "message_size", "latency"],
    )
    notes = []
    assert all_reduce_points(table, 2, notes) == [[2, 256, 5.0]]
    assert all_reduce_points(table, 8, notes) == [[4, 256, 7.0]]
    assert notes == ["outside the grid: all-reduce over 8 GPUs, measured were [2, 4]; read as 4"]


def test_a_folder_becomes_a_profile(tmp_path, capsys):
    folder = tmp_path / "systems" / "data" / "toy"
    for name, table in (
        ("gemm/vllm/0.14.0/gemm", gemms()),
        ("attention/vllm/0.14.0/context_attention", prefills()),
        ("attention/vllm/0.14.0/generation_attention", decodes()),
    ):
        path = folder / f"{name}_perf.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(path)
    (tmp_path / "systems" / "toy.yaml").write_text(SHEET)
    arguments = [str(folder), "--out", str(tmp_path / "p.json")]
    with pytest.raises(InputError, match="of no one model; name one by --model"):
        import_profile.main(arguments)
    import_profile.main([*arguments, "--model", str(write_model(tmp_path))])
    profile = read_profile(tmp_path / "p.json")
    assert profile["gpu"]["memory_bandwidth"] == 2e12
    assert profile["sections"]["linear"]["points"][0][0] == 1
    said = capsys.readouterr().out
    assert "missing: mixed batches and unequal lengths" in said
    assert "outside the grid" not in said.replace("outside the grid: contexts", "")
