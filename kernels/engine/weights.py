"""The weights of a model, or a part of them, under the same names for every family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from testbed.kernels.engine.architecture import Architecture

OPT_OFFSET = 2  # rows of OPT's position table before that of position 0
# Hugging Face's names: a prefix of all, the parts of a layer in order, and the last norm.
OPT = (
    "model.decoder.",
    "self_attn_layer_norm",
    "self_attn.out_proj",
    "final_layer_norm",
    ("fc1",),
    "fc2",
    "final_layer_norm",
)
GATED = (
    "model.",
    "input_layernorm",
    "self_attn.o_proj",
    "post_attention_layernorm",
    ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj",
    "norm",
)
Get = Callable[[str, tuple[int, ...]], Tensor]


@dataclass(frozen=True, slots=True)
class Affine:
    """A matrix [outputs, inputs] or a norm's gain [hidden], with its bias or shift, if any."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; qkv and, in gated models, up (gate first) are the concatenated matrices of one
    product.
    """

    norm_1: Affine
    qkv: Affine
    out: Affine
    norm_2: Affine
    up: Affine
    down: Affine


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model; positions is OPT's learned table without its first rows; head may be the
    embedding.

    kv_scales: of a cache of e4m3, [num_layers, 2, num_kv_heads] of K and of V; None if a folder
    has none.
    """

    embedding: Tensor
    positions: Tensor | None
    layers: list[Layer]
    norm: Affine
    head: Tensor
    kv_scales: Tensor | None = None


class Whole:
    """The part of a model that is all of it."""

    __slots__ = ()

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        """The part of a tensor with this name of Hugging Face's."""
        return tensor

    def cut_kv_heads(self, scales: Tensor) -> Tensor:
        """The part of scales, [..., num_kv_heads]."""
        return scales


WHOLE = Whole()


class Parts:
    """A part of each tensor of a model, in the memory of a device.

    whole: a tensor by name and shape, which is valid until the next one. Nothing is allocated but
    what is kept: PyTorch would put some of it into the places of larger tensors that are not, and
    keep these whole (8% of Llama-3-70B on two GPUs).
    """

    def __init__(self, whole: Get, part: Whole, device: str, dtype: torch.dtype) -> None:
        self._whole = whole
        self._part = part
        self._empty = partial(torch.empty, device=device, dtype=dtype)

    def one(self, name: str, shape: tuple[int, ...], first: int = 0) -> Tensor:
        """The part of a tensor, from row `first` on."""
        cut = self._cut(name, shape)[first:]
        return self._empty(cut.shape).copy_(cut)

    def stacked(self, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
        """The parts of several tensors, one below the other."""
        cuts = [self._part.cut(name, torch.empty(s, device="meta")) for name, s in shapes.items()]
        rows = [len(cut) for cut in cuts]
        stacked = self._empty(sum(rows), *cuts[0].shape[1:])
        for (name, shape), place in zip(shapes.items(), stacked.split(rows), strict=True):
            place.copy_(self._cut(name, shape))
        return stacked

    def _cut(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._part.cut(name, self._whole(name, shape))


def assembled(arch: Architecture, parts: Parts) -> Weights:
    """The weights of an architecture from the tensors of its family."""
    s, hidden, ffn = arch.spec, arch.spec.hidden_size, arch.spec.ffn_size
    prefix, norm_1, out, norm_2, ups, down, norm = OPT if arch.is_opt else GATED
    affine, widths = (
        partial(_affine, parts, arch.is_opt),
        {"q": arch.q_width, "k": arch.kv_width, "v": arch.kv_width},
    )

    def layer(i: int) -> Layer:
        at, bias = f"{prefix}layers.{i}.", arch.is_opt or arch.qkv_bias
        qkv = {f"{at}self_attn.{x}_proj": width for x, width in widths.items()}
        return Layer(
            norm_1=affine(at + norm_1, hidden),
            qkv=_stacked(parts, bias, qkv, hidden),
            out=affine(at + out, hidden, arch.q_width),
            norm_2=affine(at + norm_2, hidden),
            up=_stacked(parts, arch.is_opt, {at + x: ffn for x in ups}, hidden),
            down=affine(at + down, hidden, ffn),
        )

    embedding, positions = parts.one(f"{prefix}embed_tokens.weight", (s.vocab_size, hidden)), None
    if arch.is_opt:
        table = f"{prefix}embed_positions.weight", (s.max_len + OPT_OFFSET, hidden)
        positions = parts.one(*table, OPT_OFFSET)
    head = embedding if s.tied_embedding else parts.one("lm_head.weight", (s.vocab_size, hidden))
    layers = [layer(i) for i in range(s.num_layers)]
    return Weights(embedding, positions, layers, affine(prefix + norm, hidden), head)


def _affine(parts: Parts, has_bias: bool, name: str, *shape: int) -> Affine:
    bias = parts.one(f"{name}.bias", shape[:1]) if has_bias else None
    return Affine(parts.one(f"{name}.weight", shape), bias)


def _stacked(parts: Parts, has_bias: bool, widths: Mapping[str, int], inputs: int) -> Affine:
    """Products with the same inputs as one. widths: the outputs of each, by name."""
    weight = parts.stacked({f"{name}.weight": (n, inputs) for name, n in widths.items()})
    biases = {f"{name}.bias": (n,) for name, n in widths.items()}
    return Affine(weight, parts.stacked(biases) if has_bias else None)
