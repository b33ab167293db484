"""AIConfigurator's tables, by hand; all-reduces that an import takes or leaves, GPUs by name, the older profiler."""

import json

import pytest
from import_fixtures import META, write_csv, write_gpu, write_llmservingsim, write_model, write_tables
from refusals import refuses

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost, read_profile
from testbed.cost.sections import Choices
from testbed.experiments.commands.cli import call
from testbed.experiments.importers.aiconfigurator_tables import (
    Gemms,
    all_reduce_points,
    attention_rows,
    checked_rows,
    decode_points,
    prefill_points,
)
from testbed.experiments.importers.known_shapes import gpu_named, gpu_of_device
from testbed.experiments.runs.choice_names import files_of

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
    refuses(rf"gemm.parquet, row 3, column {column}: ", checked_rows, table, tmp_path / "gemm.parquet")


def test_a_hole_in_the_grid_is_named():
    holed = gemms().query("not (m == 1 and n == 128 and k == 64)")
    refuses("no time at m, n, k of 1, 128, 64", lambda: Gemms(holed).summed({"up": (128, 64, 1.0)}, []))


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
    refuses("of no one model; name one by --model", call, "import-profile", arguments)
    call("import-profile", [*arguments, "--model", str(write_model(tmp_path))])
    profile = read_profile(tmp_path / "p.json")
    assert profile["gpu"]["memory_bandwidth"] == 2e12
    assert profile["sections"]["linear"]["points"][0][0] == 1
    reported = capsys.readouterr().out
    assert "missing: mixed batches and unequal lengths" in reported
    assert "outside the grid" not in reported.replace("outside the grid: contexts", "")


BARE = Choices(overhead_s=0.0, overhead_per_request_s=0.0, cuda_graph_sizes=())
RING = [[2, 1, 20.000062], [2, 1 << 28, 20 + (1 << 28) / 16e3]]  # 2 (n - 1) / n = 1


def imported(folder, *arguments, degree=2):
    """The profile of a fresh folder of LLMServingSim's."""
    if not (folder / f"tp{degree}").is_dir():
        write_llmservingsim(folder, degree)
    out, model, gpu = folder / "p.json", str(write_model(folder)), str(write_gpu(folder))
    source = str(folder / f"tp{degree}")
    call("import-profile", [source, "--out", str(out), "--model", model, "--gpu", gpu, *arguments])
    return read_profile(out)


def test_shares_of_unequal_lengths_are_taken_where_the_profile_enables_them(tmp_path, capsys):
    assert "unequal_lengths" in imported(tmp_path, degree=1)["sections"]
    (tmp_path / "meta.yaml").write_text(META.replace("skew_fit: {", "skew_fit: {enabled: false, "))
    assert "unequal_lengths" not in imported(tmp_path, degree=1)["sections"]
    assert "skew_fit.csv is left out, as meta.yaml does not enable it" in capsys.readouterr().out


@pytest.mark.parametrize("from_bench", [True, False])
def test_a_link_becomes_all_reduces(tmp_path, from_bench):
    if from_bench:
        (tmp_path / "config.json").write_text('{"link_bw": 16, "link_latency": 20000}')
    profile = imported(tmp_path, *(() if from_bench else ("--link", "16", "--all-reduce-us", "20")))
    assert profile["sections"]["all_reduce"]["points"] == [pytest.approx(point, abs=1e-4) for point in RING]
    assert "not measured: a ring over links of 16 GB/s, 20 us each" in profile["sections"]["all_reduce"]["note"]
    model, work = ModelSpec(**profile["model"]), Work(1, 16, 16)
    pair = ServerSpec("pair", GpuSpec(**profile["gpu"]), 2)
    shard, whole = (ProfileCost(model, server, profile, BARE).iteration(work) for server in (None, pair))
    assert whole - shard == pytest.approx(4 * (20e6 + 128 / 16e9 * 1e12), rel=1e-4)  # two layers, two each


def test_missing_measurements_are_reported_and_wrong_links_refused(tmp_path, capsys):
    profile = imported(tmp_path)
    assert "say --link GB/S --all-reduce-us US, or --nccl FOLDER" in capsys.readouterr().out
    pair = ServerSpec("pair", GpuSpec(**{**profile["gpu"], "link_bandwidth": 1e10}), 2)
    configured = ProfileCost(ModelSpec(**profile["model"]), pair, profile).fingerprint["all_reduce"]
    assert configured.startswith("not measured: a ring over 10 GB/s, without latency; over PCIe that is too fast")
    refuses("the profile is of one GPU, which reduces nothing", imported, tmp_path, "--link", "16", degree=1)
    (tmp_path / "config.json").write_text('{"link_bw": -1}')
    refuses(r"config\.json: link_bw is -1, not a number above 0", imported, tmp_path)


def test_nccl_stands_in(tmp_path):
    table = tmp_path / "l40s" / "comm" / "nccl" / "2" / "nccl_perf.parquet"
    table.parent.mkdir(parents=True)
    row = {"op_name": "all_reduce", "nccl_dtype": "half", "num_gpus": 2, "message_size": 64, "latency": 0.03}
    pd.DataFrame([row]).to_parquet(table)
    profile = imported(tmp_path, "--nccl", str(tmp_path / "l40s"))
    assert profile["sections"]["all_reduce"]["points"] == [[2, 128, 30.0]]
    with pytest.raises(InputError, match=r"NCCL reduces over \[2\] GPUs there, not 4"):
        imported(tmp_path, "--nccl", str(tmp_path / "l40s"), degree=4)


def test_every_gpu_that_ships_is_known_by_its_drivers_name():
    for name in files_of("gpu"):
        assert gpu_of_device(gpu_named(name).device) == gpu_named(name)
    assert gpu_of_device("NVIDIA A100 80GB PCIe").name == "a100-80gb"
    assert gpu_of_device("NVIDIA L4000") is None


def test_the_older_profiler_is_read(tmp_path):
    here = tmp_path / "tp1"
    here.mkdir()
    names = "embedding input_layernorm q_proj k_proj v_proj rope attn o_proj post_layernorm gate_proj up_proj act_fn"
    rows = [[name, n, 0, 1, 1000 * n] for name in f"{names} down_proj final_layernorm lm_head".split() for n in (1, 64)]
    write_csv(here / "layers.csv", "layer_name,input,kv_cache,tp_size,latency(ns)", rows)
    medians = "time_stats.attn_prefill.median,time_stats.attn_decode.median"
    table = [[0.004, "", 1, 32, 32, True], [0.006, "", 1, 32, 64, True], ["", 0.05, 4, 0, 1026, False]]
    write_csv(here / "attention.csv", f"{medians},batch_size,prefill_chunk_size,kv_cache_size,is_prefill", table)
    out = tmp_path / "p.json"
    arguments = [str(here), "--out", str(out)]
    refuses("name a folder tpN, and --model and --gpu", call, "import-profile", arguments)
    call("import-profile", [*arguments, "--model", str(write_model(tmp_path)), "--gpu", str(write_gpu(tmp_path))])
    sections = json.loads(out.read_text())["sections"]
    assert sections["linear"]["points"] == [[1, 11.0], [64, 704.0]]  # attention apart
    assert sections["prefill_attention"]["points"] == [[1, 32, 0, 4.0], [1, 32, 32, 6.0]]
    assert sections["decode_attention"]["points"] == [[4, 1024, 50.0]]  # all contexts together
