"""The weights of a model under one set of names, whatever the family: from a folder, or random and seeded."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from kernels.engine.architecture import Architecture
from kernels.engine.safetensors_file import SafetensorsFolder
from testbed.core.errors import InputError

OPT_OFFSET = 2  # rows of OPT's position table before that of position 0
Get = Callable[[str, tuple[int, ...]], Tensor]


@dataclass(frozen=True, slots=True)
class Affine:
    """A matrix [outputs, inputs] or a norm's gain [hidden], and what is added: a bias, a shift, or nothing."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; qkv and, in gated models, up (gate first) are the matrices of one product, one above the other."""

    norm_1: Affine
    qkv: Affine
    out: Affine
    norm_2: Affine
    up: Affine
    down: Affine


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model; positions is OPT's learned table, its first rows cut off; head may be the embedding itself."""

    embedding: Tensor
    positions: Tensor | None
    layers: list[Layer]
    norm: Affine
    head: Tensor


def load_weights(arch: Architecture, folder: Path, device: str, dtype: torch.dtype) -> Weights:
    """The weights in a Hugging Face folder."""
    files = SafetensorsFolder(folder)
    bare = arch.is_opt and "model.decoder.embed_tokens.weight" not in files

    def get(name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = files.read(name.removeprefix("model.") if bare else name)
        if tuple(tensor.shape) != shape:
            raise InputError(f"{folder}: {name} has shape {list(tensor.shape)}, config.json says {list(shape)}")
        return tensor.to(device=device, dtype=dtype)

    return _opt(arch, get) if arch.is_opt else _gated(arch, get)


def random_weights(arch: Architecture, seed: int, device: str, dtype: torch.dtype) -> Weights:
    """Weights of the same shapes: matrices normal by their inputs, gains around 1, biases small."""

    def get(name: str, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator(device).manual_seed(seed << 32 | crc32(name.encode()))
        values = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        if "embed" in name:
            return values * 0.5
        if len(shape) == 2:
            return values * shape[1] ** -0.5
        return values * 0.05 + (1.0 if "norm" in name and name.endswith("weight") else 0.0)

    return _opt(arch, get) if arch.is_opt else _gated(arch, get)


def _opt(arch: Architecture, get: Get) -> Weights:
    s, prefix = arch.spec, "model.decoder."
    hidden, ffn = s.hidden_size, s.ffn_size

    def norm(name: str) -> Affine:
        return Affine(get(f"{name}.weight", (hidden,)), get(f"{name}.bias", (hidden,)))

    def product(name: str, outputs: int, inputs: int) -> Affine:
        return Affine(get(f"{name}.weight", (outputs, inputs)), get(f"{name}.bias", (outputs,)))

    def layer(i: int) -> Layer:
        at = f"{prefix}layers.{i}."
        qkv = [product(f"{at}self_attn.{x}_proj", hidden, hidden) for x in "qkv"]
        return Layer(
            norm(f"{at}self_attn_layer_norm"), _stacked(qkv), product(f"{at}self_attn.out_proj", hidden, hidden),
            norm(f"{at}final_layer_norm"), product(f"{at}fc1", ffn, hidden), product(f"{at}fc2", hidden, ffn),
        )  # fmt: skip

    embedding = get(f"{prefix}embed_tokens.weight", (s.vocab_size, hidden))
    positions = get(f"{prefix}embed_positions.weight", (s.max_len + OPT_OFFSET, hidden))[OPT_OFFSET:]
    head = embedding if s.tied_embedding else get("lm_head.weight", (s.vocab_size, hidden))
    layers = [layer(i) for i in range(s.num_layers)]
    return Weights(embedding, positions.contiguous(), layers, norm(f"{prefix}final_layer_norm"), head)


def _gated(arch: Architecture, get: Get) -> Weights:
    s = arch.spec
    hidden, ffn = s.hidden_size, s.ffn_size

    def product(name: str, outputs: int, inputs: int, bias: bool = False) -> Affine:
        return Affine(get(f"{name}.weight", (outputs, inputs)), get(f"{name}.bias", (outputs,)) if bias else None)

    def norm(name: str) -> Affine:
        return Affine(get(f"{name}.weight", (hidden,)))

    def layer(i: int) -> Layer:
        at, widths = f"model.layers.{i}.", {"q": arch.q_width, "k": arch.kv_width, "v": arch.kv_width}
        qkv = [product(f"{at}self_attn.{x}_proj", width, hidden, arch.qkv_bias) for x, width in widths.items()]
        up = [product(f"{at}mlp.{x}_proj", ffn, hidden) for x in ("gate", "up")]
        return Layer(
            norm(f"{at}input_layernorm"), _stacked(qkv), product(f"{at}self_attn.o_proj", hidden, arch.q_width),
            norm(f"{at}post_attention_layernorm"), _stacked(up), product(f"{at}mlp.down_proj", hidden, ffn),
        )  # fmt: skip

    embedding = get("model.embed_tokens.weight", (s.vocab_size, hidden))
    head = embedding if s.tied_embedding else get("lm_head.weight", (s.vocab_size, hidden))
    return Weights(embedding, None, [layer(i) for i in range(s.num_layers)], norm("model.norm"), head)


def _stacked(parts: list[Affine]) -> Affine:
    """Products of one input as one product."""
    biases = [part.bias for part in parts if part.bias is not None]
    return Affine(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)
