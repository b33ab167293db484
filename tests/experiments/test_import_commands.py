"""`testbed import-...`: shapes, lengths and times of others become files of ours, which run; wrong
files are refused and nothing is left behind.
"""

import csv
import json
import pickle

import pytest
import yaml
from import_fixtures import write_llmservingsim
from refusals import check_refusal, check_words

from testbed.cost.profile import read_profile

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def _config(testbed, tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(CONFIG))


SHAPE = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_size": 16,
    "ffn_size": 160,
    "ffn_matrices": 3,
    "vocab_size": 100,
    "max_len": 512,
    "tied_embedding": True,
    "dtype_bytes": 2,
}


@pytest.mark.usefixtures("_config")
def test_a_hugging_face_config_becomes_a_model_that_runs(testbed, run, tmp_path):
    """0.25 KiB of K and V a token: 2 layers of 2 heads of 16, both twice, of 2 bytes."""
    output = testbed.done("import", "model", "hf/config.json", "--out", "options/model/hf.yaml")
    check_words(("0.25 KiB of KV cache a token", "--config-dir", "model=hf"), output)
    values = yaml.safe_load((tmp_path / "options" / "model" / "hf.yaml").read_text())
    assert values == {"_target_": "testbed.core.specs.ModelSpec", "name": "hf", **SHAPE}
    finished = run(
        "--config-dir=options model=hf gpu=l4 server.num_blocks=1000 arrivals.duration_s=3 "
        "swap_space_gib=0"  # whose blocks are as small as the model
    )
    assert finished.summary["run"]["model"] == "hf"


@pytest.mark.usefixtures("_config")
@pytest.mark.parametrize(
    ("option", "command"),
    [
        ("--from-vllm", "vllm serve hf --num-gpu-blocks-override 100"),
        ("--from-sglang", "sglang serve --model-path ./hf --max-total-tokens 4096"),
    ],
)
def test_a_folder_s_server_is_simulated(testbed, tmp_path, option, command):
    """With the shape that its file has when the run begins."""
    words = ("gpu=l4", "swap_space_gib=0", "arrivals.duration_s=2", "--json", "--again")
    served = ("run", option, command, *words)
    for layers in (2, 4):
        (tmp_path / "hf" / "config.json").write_text(
            json.dumps({**CONFIG, "num_hidden_layers": layers})
        )
        code, printed, error = testbed(*served)
        assert (code, "model=./hf" in error) == (0, True)
        run = json.loads(printed)["summary"]["run"]
        assert (run["model"], run["slot_layers"]) == ("hf", layers)
    for command in ("run", "hits"):
        assert "gpu=" in testbed.refused(command, "model=./hf")
    assert "no shape" in testbed.refused("run", "model=./fh", "gpu=l4")


def test_windows_of_a_folder_s_model_have_vllms_groups(testbed, tmp_path):
    (tmp_path / "own").mkdir()
    windows = {"sliding_window": 64, "query_pre_attn_scalar": 16, "hidden_activation": "gelu"}
    # Heads so wide that the GPU has few blocks
    gemma = {**CONFIG, **windows, "model_type": "gemma2", "head_dim": 1024, "architectures": []}
    (tmp_path / "own" / "config.json").write_text(json.dumps(gemma))
    server = "vllm serve ./own"
    words = ("gpu=l4", "release=0.33", "arrivals.duration_s=2", "outputs=summary", "--json")
    pools = [
        json.loads(testbed(*line, *words)[1])["summary"]["run"]["pool_gib"]
        for line in (
            ("run", "--from-vllm", server),
            ("run", "+system=vllm-v1", "model=./own"),
        )
    ]
    assert pools[0] == pools[1]
    assert "--disable-sliding-window" in testbed.refused(
        "run", "--from-vllm", f"{server} --disable-sliding-window", *words[:-1]
    )


@pytest.mark.usefixtures("_config")
def test_a_model_can_be_named_and_written_as_json(testbed, tmp_path):
    testbed.done("import", "model", "hf/config.json", "--name", "small", "--out", "small.json")
    assert json.loads((tmp_path / "small.json").read_text()) == {"name": "small", **SHAPE}


@pytest.mark.usefixtures("_config")
def test_folder_in_place_of_a_config_is_refused(testbed):
    check_words(("hf", "directory"), testbed.refused("import", "model", "hf"))


def test_lengths_of_the_papers_artifact_become_a_csv(testbed, tmp_path):
    """Of numbers, or of lists of tokens."""
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([(3, 4), ([5, 6, 7], [8])]))
    output = testbed.done("import", "lengths", "a.pkl", "a.csv")
    check_words(("2 requests", "3.00 and 2.50 tokens", "not rows that this project knows"), output)
    with (tmp_path / "a.csv").open() as file:
        assert [tuple(row.values()) for row in csv.DictReader(file)] == [("3", "4"), ("3", "1")]


def test_csv_in_place_of_a_pickle_is_refused(testbed, tmp_path):
    (tmp_path / "lengths.csv").write_text("input_tokens,output_tokens\n1,2\n")
    check_words(("lengths.csv",), testbed.refused("import", "lengths", "lengths.csv", "a.csv"))
    assert not (tmp_path / "a.csv").exists()


@pytest.fixture
def theirs(testbed, tmp_path):
    """A folder of LLMServingSim's, and a model for it."""
    (tmp_path / "theirs").mkdir()
    shape = {**SHAPE, "name": "small", "ffn_size": 128, "vocab_size": 1000}
    (tmp_path / "small.json").write_text(json.dumps(shape))
    return write_llmservingsim(tmp_path / "theirs")


def import_profile(testbed, *words, out="p.json"):
    return testbed("import", "profile", "theirs", "--out", out, "--model", "small.json", *words)


WRONG_LINES = [
    ("dense", "qkv_proj,64,6.0", "qkv_proj,64,fast", ("line 5", "time_us", "'fast'")),
    ("dense", "qkv_proj,64,6.0", "qkv_proj,64,inf", ("line 5", "time_us", "'inf'")),
    ("dense", "qkv_proj,64,6.0", "qkv_proj,64,-0.1", ("line 5", "time_us", "'-0.1'")),
    ("dense", "qkv_proj,64,6.0", "qkv_proj,6.4,6.0", ("line 5", "tokens", "'6.4'")),
    ("dense", "qkv_proj,64,6.0", "qkv_proj,1,6.0", ("line 5", "qkv_proj at 1 tokens", "keep one")),
    ("attention", "16,0,1,15,", "16,0,-1,15,", ("line 7", "n_decode", "'-1'")),
    ("skew_fit", "0.3", "nan", ("line 2", "alpha", "'nan'")),
    ("skew_fit", "n<=8", "n8", ("'n8'", "n<=128")),
]


@pytest.mark.parametrize(
    ("table", "right", "wrong", "words"),
    WRONG_LINES,
    ids=[f"{table}: {wrong}" for table, _, wrong, _ in WRONG_LINES],
)
def test_a_wrong_line_of_a_table_is_refused_by_file_line_and_column(
    testbed, theirs, tmp_path, table, right, wrong, words
):
    path = theirs / f"{table}.csv"
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    code, output, error = import_profile(testbed)
    assert (code, output) == (2, "")
    check_words((f"theirs/tp1/{table}.csv", *words), error)
    assert not (tmp_path / "p.json").exists()


def test_a_missing_table_is_named(testbed, theirs):
    (theirs / "dense.csv").unlink()
    code, _, error = import_profile(testbed)
    assert code == 2
    check_words(("theirs/tp1", "no dense.csv"), error)


@pytest.fixture
def changed(testbed, theirs, tmp_path):
    """Read an imported profile after a change."""
    assert import_profile(testbed)[0] == 0
    path = tmp_path / "p.json"

    def read(change):
        profile = json.loads(path.read_text())
        change(profile)
        path.write_text(json.dumps(profile))
        return read_profile(path)

    return read


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ([1, "slow"], ("'slow'", "number of at least 0")),
        ([2, -9.0], ("-9.0", "number of at least 0")),
        ([2, None], ("None", "number of at least 0")),
        ([2, float("inf")], ("inf", "number of at least 0")),
        ([1], ("[1]", "1 axis values and a time")),
        ([1.5, 1.0], ("[1.5]", "whole numbers")),
        ([64, 1.0], ("[64]", "point 2", "keep one")),
    ],
    ids=str,
)
def test_a_wrong_point_of_a_profile_is_refused_by_its_number(changed, point, words):
    check_refusal(
        ("p.json, section linear, point 3", *words),
        changed,
        lambda profile: profile["sections"]["linear"]["points"].append(point),
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda p: p["sections"].clear(), ("has no sections",), id="no sections"),
        pytest.param(lambda p: p.update(format=7), ("format 7", "reads 1"), id="another format"),
        pytest.param(lambda p: p["model"].pop("ffn_size"), ("model", "ffn_size"), id="no ffn_size"),
        pytest.param(
            lambda p: p["model"].update(num_layers=0), ("num_layers", "above 0"), id="no layer"
        ),
        pytest.param(lambda p: p.update(num_gpus=0), ("num_gpus", "at least 1"), id="no GPU"),
        pytest.param(
            lambda p: p["sections"]["linear"].update(axes=["num_rows"]),
            ("section linear", "num_rows", "num_tokens"),
            id="another axis",
        ),
        pytest.param(
            lambda p: p["sections"].update(linaer=p["sections"]["linear"]),
            ("section linaer", "nothing reads it", "linear"),
            id="a mistyped section",
        ),
        pytest.param(
            lambda p: p["sections"]["unequal_lengths"]["points"][0].__setitem__(5, 1.5),
            ("section unequal_lengths, point 1", "1.5", "from 0 to 1"),
            id="a share above one",
        ),
    ],
)
def test_a_wrong_profile_is_refused_by_its_part(changed, change, words):
    check_refusal(words, changed, change)
