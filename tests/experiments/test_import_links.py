"""All-reduces and shares that an import takes or leaves, GPUs by their drivers' names, and the older profiler."""

import json

import pytest
from import_fixtures import META, write_csv, write_gpu, write_llmservingsim, write_model

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost, read_profile
from testbed.cost.sections import Choices
from testbed.experiments.commands.imports import import_profile
from testbed.experiments.importers.known_shapes import gpu_named, gpu_of_device
from testbed.experiments.runs.choice_names import files_of

BARE = Choices(overhead_s=0.0, overhead_per_request_s=0.0, cuda_graph_sizes=())
RING = [[2, 1, 20.000062], [2, 1 << 28, 20 + (1 << 28) / 16e3]]  # 2 (n - 1) / n = 1


def imported(folder, *arguments, degree=2):
    """The profile of a fresh folder of LLMServingSim's."""
    if not (folder / f"tp{degree}").is_dir():
        write_llmservingsim(folder, degree)
    out, model, gpu = folder / "p.json", str(write_model(folder)), str(write_gpu(folder))
    source = str(folder / f"tp{degree}")
    import_profile([source, "--out", str(out), "--model", model, "--gpu", gpu, *arguments])
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
    with pytest.raises(InputError, match="the profile is of one GPU, which reduces nothing"):
        imported(tmp_path, "--link", "16", degree=1)
    (tmp_path / "config.json").write_text('{"link_bw": -1}')
    with pytest.raises(InputError, match=r"config\.json: link_bw is -1, not a number above 0"):
        imported(tmp_path)


def test_nccl_stands_in(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
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
    with pytest.raises(InputError, match="name a folder tpN, and --model and --gpu"):
        import_profile(arguments)
    import_profile([*arguments, "--model", str(write_model(tmp_path)), "--gpu", str(write_gpu(tmp_path))])
    sections = json.loads(out.read_text())["sections"]
    assert sections["linear"]["points"] == [[1, 11.0], [64, 704.0]]  # attention apart
    assert sections["prefill_attention"]["points"] == [[1, 32, 0, 4.0], [1, 32, 32, 6.0]]
    assert sections["decode_attention"]["points"] == [[4, 1024, 50.0]]  # all contexts together
