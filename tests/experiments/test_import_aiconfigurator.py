"""AIConfigurator's tables, whole and by hand; all-reduces that an import takes or leaves, GPUs by
name.
"""

from dataclasses import replace

import pytest
from import_fixtures import write_every_table, write_gpu, write_llmservingsim, write_model
from refusals import refuses

from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.profile import ProfileCost, read_profile
from testbed.experiments.cli.main import call
from testbed.experiments.real.importers.aiconfigurator_tables import (
    Gemms,
    checked_rows,
    decode_points,
    typed_rows,
)
from testbed.experiments.real.importers.known_shapes import gpu_named, gpu_of_device, model_named
from testbed.experiments.runs.choice_names import files_of

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_every_table(tmp_path_factory.mktemp("tables"))


def table(folder, name):
    (path,) = folder.glob(f"*/vllm/*/{name}_perf.parquet")
    return pd.read_parquet(path)


ATTENTION = {"decode_attention", "prefill_attention"}
WINDOW = {"window_decode_attention", "window_prefill_attention"}
STATE = {"state_decode", "state_prefill"}
SHARDS = [
    pytest.param("gpt-oss-20b", ATTENTION | WINDOW | {"experts"}, set(), id="windows and experts"),
    pytest.param(
        "gpt-oss-20b --kv-dtype-bytes 1", ATTENTION | WINDOW | {"experts"}, set(), id="fp8 keys"
    ),
    pytest.param(
        "gpt-oss-120b --tensor-parallel 4 --gpu h200",
        ATTENTION | WINDOW | {"experts", "all_reduce"},
        {"experts"},
        id="no rows of its experts",
    ),
    pytest.param(
        "gemma-2-27b --tensor-parallel 2",
        ATTENTION | WINDOW | {"all_reduce"},
        {"window"},
        id="a window without rows",
    ),
    pytest.param(
        "deepseek-v3 --tensor-parallel 8",
        ATTENTION | {"experts", "all_reduce"},
        {"experts"},
        id="latent attention",
    ),
    pytest.param(
        "qwen3-next-80b-a3b --tensor-parallel 2",
        ATTENTION | STATE | {"experts", "all_reduce"},
        {"experts"},
        id="states from tables",
    ),
    pytest.param("nemotron-h-8b", ATTENTION | STATE, {"state"}, id="states by a roofline"),
    pytest.param("opt-13b --weight-bits 8", ATTENTION, set(), id="fp8 weights"),
]


def import_shard(folder, out, words):
    """The profile of a shard, imported from AIConfigurator's tables."""
    call("import profile", [str(folder), "--out", str(out), "--model", *words.split()])
    return read_profile(out)


@pytest.mark.parametrize(("words", "sections", "not_measured"), SHARDS)
def test_profile_of_a_shard_has_the_sections_of_its_model(
    folder, tmp_path, words, sections, not_measured
):
    profile = import_shard(folder, tmp_path / "p.json", words)
    assert set(profile["sections"]) == {"linear", "output_head", *sections}
    assert set(profile["fingerprint"].get("not_measured", {})) == not_measured
    for name, section in profile["sections"].items():
        assert all(point[-1] > 0 for point in section["points"]), name


def gemm_us(num_tokens, width, depth):
    """The time that the tables' formula gives: in proportion beyond the measured sizes."""
    measured_width, measured_depth = min(width, 32768), min(depth, 8192)
    inside = num_tokens + measured_width * measured_depth / 2**20
    return inside * width / measured_width * depth / measured_depth


@pytest.mark.parametrize(
    ("words", "products", "share"),
    [
        pytest.param(
            "opt-13b --weight-bits 8",
            [(15360, 5120), (5120, 5120), (20480, 5120), (5120, 20480)],
            0.6,
            id="fp8 takes 0.6 of the time",
        ),
        pytest.param(
            "gemma-2-27b --tensor-parallel 2",
            [(4096, 4608), (4608, 2048), (36864, 4608), (4608, 18432)],
            1.0,
            id="half of the heads and of the feed-forward network",
        ),
        pytest.param(
            "gemma-3-27b --tensor-parallel 2",
            [(4096, 5376), (5376, 2048), (21504, 5376), (5376, 10752)],
            1.0,
            id="a depth that is no power of two",
        ),
    ],
)
def test_linear_times_are_those_of_the_shards_matrix_products(
    folder, tmp_path, words, products, share
):
    """Of queries, keys and values; the output; the gate with the way up; the way down."""
    profile = import_shard(folder, tmp_path / "p.json", words)
    for num_tokens, us in profile["sections"]["linear"]["points"]:
        expected = share * sum(gemm_us(num_tokens, *size) for size in products)
        assert us == pytest.approx(expected, rel=1e-4)


def test_all_reduces_are_vllms_own(folder, tmp_path):
    words = "gemma-3-27b --tensor-parallel 2"
    section = import_shard(folder, tmp_path / "p.json", words)["sections"]["all_reduce"]
    assert section["points"] == [[2, 256, 2.001], [2, 2e6, 12.0]]


def remove(folder, part):
    """Remove the files of AIConfigurator's folder whose path has this part."""
    for path in (folder.parents[2] / "systems").rglob("*"):
        if path.is_file() and part in str(path):
            path.unlink()


@pytest.mark.parametrize(
    ("removed", "words", "message"),
    [
        pytest.param((), "opt-13b --tensor-parallel 3", "does not divide 40 heads", id="3 GPUs"),
        pytest.param((), "opt-13b --weight-bits 4", "weights of 4.0 bits: are in no table", id="4"),
        pytest.param((), "opt-13b --kv-dtype-bytes 4", "K and V of 4 bytes", id="4 bytes"),
        pytest.param(
            (), "deepseek-v2 --tensor-parallel 8", "no rows of num_heads 16", id="16 heads"
        ),
        pytest.param((), "opt-13b --gpu l4", "measured on NVIDIA H200, which is not", id="an L4"),
        pytest.param((), "opt-7b", "--model opt-7b: ", id="an unknown model"),
        pytest.param((), "opt-13b --gpu none", "gpu=none: is no GPU", id="no such GPU"),
        pytest.param(
            ("mla",),
            "deepseek-v3 --tensor-parallel 8",
            "latent_decode: there is no such table",
            id="no table",
        ),
        pytest.param(
            ("toy.yaml",),
            "nemotron-h-8b",
            "a roofline needs .name one by --gpu",
            id="no data sheet",
        ),
    ],
)
def test_a_profile_that_the_tables_do_not_give_is_refused(
    folder, tmp_path, removed, words, message
):
    if removed:
        folder = write_every_table(tmp_path)
    for part in removed:
        remove(folder, part)
    refuses(message, import_shard, folder, tmp_path / "p.json", words)
    assert not (tmp_path / "p.json").exists()


def test_tables_without_a_models_name_need_one(folder, tmp_path):
    out = ["--out", str(tmp_path / "p.json")]
    refuses("toy: ", call, "import profile", [str(folder), *out])


def test_gemm_times_are_linear_between_rows_and_in_proportion_beyond(folder):
    """(m + n k / 2^20) us."""
    gemms, notes = Gemms(table(folder, "gemm")), []
    assert gemms.summed({"up": (8192, 512, 1.0), "down": (1024, 4096, 0.5)}, notes) == [
        [1, 7.5],
        [64, 102.0],
    ]
    assert notes == []
    assert gemms.summed({"near": (9216, 4096, 1.0)}, []) == [[1, 37.0], [64, 100.0]]
    assert gemms.summed({"far": (65536, 16384, 1.0)}, [])[0] == [1, 4 * (1 + 256)]
    holed = table(folder, "gemm").query("not (m == 1 and n == 8192 and k == 4096)")
    refuses(
        "matrix products: ",
        lambda: Gemms(holed).summed({"up": (8192, 4096, 1.0)}, []),
    )


@pytest.mark.parametrize(
    ("column", "value"), [("latency", float("nan")), ("latency", 0.0), ("n", float("inf"))]
)
def test_text_in_place_of_a_number_is_refused_by_name(folder, column, value):
    wrong = table(folder, "gemm").astype({"n": float})
    wrong.loc[3, column] = value
    refuses(
        rf"gemm.parquet, row 3, column {column}: ", checked_rows, wrong, folder / "gemm.parquet"
    )


def test_more_kv_heads_are_read_as_a_larger_batch(folder):
    """A context is step + 1; 8 heads of K and V take what a batch of 4 with 2 heads each takes."""
    rows = typed_rows(table(folder, "generation_attention"), "bfloat16", 0).query("head_dim == 64")
    few = rows[rows["num_key_value_heads"] == 1].assign(num_heads=1)
    points = {tuple(point[:2]): point[2] for point in decode_points(few, 4, 4, [])}
    measured = few.set_index(["batch_size", "step"])["latency"]
    assert points == {(1, 16): 1000 * measured[4, 15], (1, 1024): 1000 * measured[4, 1023]}
    older = table(folder, "generation_attention").drop(
        columns="window_size"
    )  # of full attention only
    assert [len(typed_rows(older, "fp8", window)) for window in (0, 128)] == [64, 0]


def imported(folder, *arguments, degree=2):
    """The profile of a fresh folder of LLMServingSim's."""
    if not (folder / f"tp{degree}").is_dir():
        write_llmservingsim(folder, degree)
    out, model, gpu = folder / "p.json", str(write_model(folder)), str(write_gpu(folder))
    source = str(folder / f"tp{degree}")
    call("import profile", [source, "--out", str(out), "--model", model, "--gpu", gpu, *arguments])
    return read_profile(out)


def test_missing_measurements_are_reported(tmp_path, capsys):
    profile = imported(tmp_path)
    assert "missing: all-reduces; a ring over the data sheet's links" in capsys.readouterr().out
    pair = ServerSpec("pair", GpuSpec(**{**profile["gpu"], "link_bandwidth": 1e10}), 2)
    configured = ProfileCost(ModelSpec(**profile["model"]), pair, profile).fingerprint["all_reduce"]
    assert configured.startswith(
        "not measured: a ring over 10 GB/s, without latency; over PCIe that is too fast"
    )


def test_every_gpu_that_ships_is_known_by_its_drivers_name():
    for name in files_of("gpu"):
        assert gpu_of_device(gpu_named(name).device) == gpu_named(name) == gpu_of_device(name)
    assert gpu_of_device("NVIDIA A100 80GB PCIe").name == "a100-80gb-pcie"
    assert gpu_of_device("NVIDIA RTX PRO 6000 Blackwell Workstation Edition").name == "rtx-pro-6000"
    assert gpu_of_device("NVIDIA L4000") is None


@pytest.mark.parametrize(
    ("name", "ours", "max_len"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-8b", 131_072),
        ("Llama-3.1-70B-Instruct", "llama-3-70b", 131_072),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b", 8192),
        ("opt-13b", "opt-13b", 2048),
    ],
)
def test_models_are_known_by_their_names_on_hugging_face(name, ours, max_len):
    short = name.rpartition("/")[2].lower()
    assert model_named(name) == replace(model_named(ours), name=short, max_len=max_len)
