"""Model shapes by name, read from the configuration that the experiments use too, without needing hydra."""

from pathlib import Path

import torch

from kernels.verify.random_batches import Shape
from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec

MODELS = Path(__file__).parents[2] / "experiments" / "conf" / "model"
SHIPPED = {
    "opt-13b": 1,
    "opt-66b": 4,
    "opt-175b": 8,
    "llama-13b": 1,
    "llama-3-8b": 1,
    "llama-3-70b": 4,
    "qwen2.5-0.5b": 1,
}


def read_model(name: str) -> ModelSpec:
    """The shape of a model of the configuration; its files are flat `key: value` lines."""
    path = MODELS / f"{name}.yaml"
    if not path.exists():
        known = sorted(file.stem for file in MODELS.glob("*.yaml"))
        raise InputError(f"unknown model {name}: choose one of {', '.join(known)}")
    values: dict[str, str | int | bool] = {}
    for line in path.read_text().splitlines():
        key, colon, text = line.partition("#")[0].partition(":")
        text = text.strip()
        if colon and not key.startswith("_"):
            values[key.strip()] = int(text) if text.isdigit() else text == "true" if text in ("true", "false") else text
    return ModelSpec(**values)


def shard_shape(model: ModelSpec, num_gpus: int, block_size: int = 16) -> Shape:
    """Heads that one of num_gpus GPUs holds under tensor parallelism."""
    if model.num_heads % num_gpus or (model.num_kv_heads % num_gpus and num_gpus % model.num_kv_heads):
        raise InputError(
            f"{model.name}: {model.num_heads}/{model.num_kv_heads} heads do not split over {num_gpus} GPUs"
        )
    kv_heads = max(1, model.num_kv_heads // num_gpus)
    return Shape(model.num_heads // num_gpus, kv_heads, model.head_size, block_size, torch.float16)
