"""`fits` beside the pool that the installed SGLang computes: twelve models on five GPUs.

Both read the same config.json: a family's, with the layers and heads of a model that ships. SGLang
gets the free memory before and after the weights that `fits` takes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.experiments.real.lockstep.sglang_starts import (
    NamedGpu,
    Start,
    Started,
    installed_starts,
)
from testbed.experiments.sglang_server.named_server import server_of
from testbed.experiments.vllm_server.named import gpu_named
from testbed.sglang.command import read_command
from testbed.sglang.memory import reported_mib
from testbed.sglang.server import Server
from testbed.vllm.generations import capability_of

FAMILIES = Path(__file__).with_name("families.json")
GPUS = ("h100-80gb", "h200", "a100-80gb", "l40s", "b200")
MODELS = {  # by the family whose config.json it has
    "llama-3.1-8b": "llama",
    "llama-3.1-70b": "llama",
    "mistral-7b": "mistral",
    "qwen2.5-7b": "qwen2",
    "qwen3-32b": "qwen3",
    "phi-4": "phi3",
    "gemma-2-27b": "gemma2",
    "qwen3-30b-a3b": "qwen3-moe",
    "mixtral-8x7b": "mixtral",
    "glm-4.7": "glm4-moe",
    "deepseek-v3": "deepseek-v3",
    "gpt-oss-120b": "gpt-oss",
}
OPTIONS = (
    "",
    "--page-size 64 --max-total-tokens 99999999",
    "--mem-fraction-static 0.8 --max-running-requests 100",
    "--max-total-tokens 5001 --page-size 16",
    "--chunked-prefill-size 2048 --disable-cuda-graph",
    "--chunked-prefill-size -1",
    "--kv-cache-dtype fp8_e4m3 --context-length 4096",
    "--swa-full-tokens-ratio 0.5 --cuda-graph-max-bs-decode 64",
)
PARALLEL = (1, 2, 4, 8, 16, 32, 64)


class Question(NamedTuple):
    """A command, by the words behind `sglang serve`, on a GPU; options are the last of them."""

    name: str
    gpu: str
    model_words: str
    options: str = ""

    @property
    def words(self) -> str:
        return f"{self.model_words} {self.options}".strip()

    @property
    def without_options(self) -> "Question":
        """The server that starts, whose memory is the same."""
        return self._replace(options="")

    @property
    def server(self) -> Server:
        """Ours. Raises InputError if it would not start."""
        return server_of(read_command(f"sglang serve {self.words}"), self.gpu, for_memory=True)


def check_capacities(
    gpus: Sequence[str] = GPUS, models: Sequence[str] = tuple(MODELS)
) -> Iterator[str]:
    """A line for each command that SGLang computes otherwise, then how many are equal. Raises
    InputError if SGLang is not installed.
    """
    num_equal = num_asked = 0
    with TemporaryDirectory() as folder:
        for gpu in gpus:
            questions = [q for name in models for q in _questions(name, gpu, Path(folder))]
            ours = [_ours(question) for question in questions]
            theirs = _theirs(gpu, questions)
            for question, here, there in zip(questions, ours, theirs, strict=True):
                num_asked += 1
                if difference := _difference(here, there):
                    yield f"{question.name} on {gpu}, {question.words}: {difference}"
                else:
                    num_equal += 1
    yield f"{num_equal:,} of {num_asked:,} commands: the pool that the installed SGLang computes"


def config_of(name: str) -> dict[str, Any]:
    """The config.json of a model that ships, of its family's form."""
    shape = read_model(name)
    config: dict[str, Any] = json.loads(FAMILIES.read_text(encoding="utf-8"))[MODELS[name]]
    config |= {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_len,
    }
    if "head_dim" in config:
        config["head_dim"] = shape.head_size
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:2] * (shape.num_layers // 2)
    return config | _experts(config, shape)


def _experts(config: dict[str, Any], shape: ModelSpec) -> dict[str, Any]:
    """The experts of a shape, by the names that a config.json has for them."""
    if shape.experts is None:
        return {}
    size = "moe_intermediate_size"
    counts = ("num_experts", "n_routed_experts", "num_local_experts")
    values: dict[str, Any] = {key: shape.experts.count for key in counts if key in config}
    values["num_experts_per_tok"] = shape.experts.per_token
    values[size if size in config else "intermediate_size"] = shape.experts.size
    return values


def _questions(name: str, gpu: str, folder: Path) -> Iterator[Question]:
    """The commands of a model on the fewest GPUs that start."""
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config_of(name)), encoding="utf-8")
    plain = [Question(name, gpu, f"--model-path {path} --tp-size {count}") for count in PARALLEL]
    first = next((question for question in plain if _starts(question)), None)
    if first is None:
        raise InputError(key="model", value=name, problem=f"does not fit {PARALLEL[-1]} {gpu}")
    yield from (first._replace(options=options) for options in OPTIONS)


def _starts(question: Question) -> bool:
    return not _ours(question).error


def _ours(question: Question) -> Started:
    try:
        server = question.server
    except DoesNotStart as error:
        return Started(error=str(error))
    return Started(
        page_size=server.pool.page_size,
        chunked_prefill_size=server.limits.chunked_prefill_size,
        mem_fraction_static=server.memory.fraction,
        max_total_num_tokens=server.pool.num_tokens,
        swa_tokens=server.pool.window_tokens,
        max_running_requests=server.max_running_requests,
        context_len=server.model.max_len,
    )


def _theirs(gpu: str, questions: Sequence[Question]) -> list[Started]:
    sheet = gpu_named(gpu)
    named = NamedGpu(sheet.device or gpu, reported_mib(sheet), capability_of(sheet))
    starts = []
    for question in questions:
        memory = question.without_options.server.memory
        words = tuple(question.words.split())
        starts.append(Start(words, memory.free, memory.free - memory.weights))
    return installed_starts(named, starts)


def _difference(here: Started, there: Started) -> str:
    """The differing values, ours and theirs; empty if nothing does."""
    if here.error or there.error:
        same = bool(here.error) == bool(there.error)
        return "" if same else f"{here.error or 'starts'}, SGLang: {there.error or 'starts'}"
    ours, theirs = asdict(here), asdict(there)
    return ", ".join(
        f"{field.name} {ours[field.name]}, SGLang: {theirs[field.name]}"
        for field in fields(Started)
        if ours[field.name] != theirs[field.name]
    )
