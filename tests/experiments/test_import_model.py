"""import model: configs of Hugging Face against the shapes that ship; import lengths: pickles of
artifacts.
"""

import json
import os
import pickle

import hf_configs
import pytest
from hf_configs import GEMMA_2, MISTRAL, QWEN3_MOE
from refusals import refuses

from testbed.core.hf_config import model_of
from testbed.experiments.cli.main import call
from testbed.experiments.real.importers.known_shapes import model_named


def config(tmp_path, values, name="config.json"):
    path = tmp_path / name
    path.write_text(json.dumps(values))
    return path


# Config, billions of weights as its authors give them, bytes a token, layers and bytes of each
# group's cache.
SHIPPED = {
    "opt-13b": (hf_configs.OPT, 12.85, 819_200, ["full"]),
    "llama-3-8b": (hf_configs.LLAMA, 8.03, 131_072, ["full"]),
    "llama-3.1-8b": (hf_configs.LLAMA_31, 8.03, 131_072, ["full"]),
    "llama-3.1-70b": (hf_configs.LLAMA_70B, 70.6, 327_680, ["full"]),
    "mistral-7b": (MISTRAL | {"sliding_window": None}, 7.24, 131_072, ["full"]),
    "mistral-7b-v0.1": (MISTRAL | {"sliding_window": 4096}, 7.24, 131_072, ["window"]),
    "qwen2.5-7b": (hf_configs.QWEN25, 7.62, 57_344, ["full"]),
    "qwen3-8b": (hf_configs.QWEN3, 8.2, 147_456, ["full"]),
    "qwen3-30b-a3b": (QWEN3_MOE, 30.5, 98_304, ["full"]),
    "qwen3-next-80b-a3b": (hf_configs.QWEN3_NEXT, 80, 24_576, ["full", "state"]),
    "deepseek-v2": (hf_configs.DEEPSEEK_V2, 236, 69_120, ["latent"]),
    "deepseek-v3": (hf_configs.DEEPSEEK_V3, 671, 70_272, ["latent"]),
    "gpt-oss-120b": (hf_configs.GPT_OSS, 116.8, 73_728, ["full", "window"]),
    "gpt-oss-20b": (hf_configs.GPT_OSS_20B, 20.9, 49_152, ["full", "window"]),
    "gemma-2-27b": (GEMMA_2, 27.2, 376_832, ["full", "window"]),
    "gemma-3-27b": (hf_configs.GEMMA_3, 27.4, 507_904, ["full", "window"]),
    "mixtral-8x7b": (hf_configs.MIXTRAL, 46.7, 131_072, ["full"]),
    "nemotron-h-8b": (hf_configs.NEMOTRON_H, 8.1, 16_384, ["full", "state"]),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_shapes_come_from_their_config_and_have_the_published_size(tmp_path, name):
    values, billions, token_bytes, groups = SHIPPED[name]
    model = model_of(config(tmp_path, values), name)
    assert model == model_named(name)
    assert model.num_params / 1e9 == pytest.approx(billions, rel=0.006)
    assert (model.kv_bytes_per_token, [group.name for group in model.groups]) == (
        token_bytes,
        groups,
    )


UNREADABLE = {
    "[" * 100_000: "config.json: not a JSON file",
    '{"hidden_size": ' + "9" * 5000 + "}": "config.json: not a JSON file",
    '{"num_layers": 2, "ffn_matrices": 3}': "config.json.*name: is not given",
    "[]": "not a JSON object",
}


@pytest.mark.parametrize(
    ("text", "message"), UNREADABLE.items(), ids=["deep", "digits", "a part", "a list"]
)
def test_a_file_that_describes_no_model_is_named(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    refuses(message, model_of, tmp_path / "config.json")


class Harmful:
    """Runs a command where a careless reader would."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize(
    "content",
    [b"", b"no pickle", *map(pickle.dumps, ({}, [], [(1, 2, 3)], [("a", 1)], [([True], 1)]))],
)
def test_pickle_of_another_form_is_refused(tmp_path, content):
    (tmp_path / "a.pkl").write_bytes(content)
    refuses(r"a\.pkl", call, "import lengths", [str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])


def test_import_executes_no_code_of_a_pickle(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([Harmful(str(tmp_path / "harm"))]))
    refuses("mkdir", call, "import lengths", [str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])
    assert not (tmp_path / "harm").exists()
