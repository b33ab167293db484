"""The part of a model that a rank has: Megatron's split of its matrices, of its heads and of its
vocabulary.

The products before attention and before the activation are split by output (columns, in Megatron's
words), those behind them by input (rows), so that their results are sums over the ranks. Heads of K
and V of which there are fewer than ranks are copied. Norms, positions and the biases of products
that are summed are whole on every rank.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.slots import ceil_div
from testbed.core.specs import ModelSpec
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.random_weights import random_weights
from testbed.kernels.engine.weight_folder import load_weights
from testbed.kernels.engine.weights import Weights, Whole

# Hugging Face's names of the modules whose outputs, inputs or tokens are split.
BY_OUTPUT = ("q_proj", "gate_proj", "up_proj", "fc1")
BY_KV_HEAD = ("k_proj", "v_proj")
BY_INPUT = ("o_proj", "out_proj", "down_proj", "fc2")
BY_TOKEN = ("embed_tokens", "lm_head")


def check_divides(spec: ModelSpec, num_ranks: int) -> None:
    """Raise InputError for a model that num_ranks GPUs cannot divide."""
    problem = spec.heads_problem(num_ranks)
    if not problem and spec.ffn_size % num_ranks:
        problem = f"a feed-forward layer of {spec.ffn_size} values must be divisible by it"
    if problem:
        raise InputError(
            key="server.num_gpus",
            value=num_ranks,
            problem=f"of {spec.name} {problem}",
            remedy="give a divisor of the model's heads, or simulate",
        )


@dataclass(frozen=True, slots=True)
class Shard(Whole):
    """The part of a model that `rank` of num_ranks has; arch: the whole model's."""

    arch: Architecture
    rank: int
    num_ranks: int

    @property
    def local(self) -> Architecture:
        """The architecture of the part, with the whole vocabulary; the same for every rank."""
        spec, n = self.arch.spec, self.num_ranks
        return replace(
            self.arch,
            spec=replace(
                spec,
                num_heads=spec.num_heads // n,
                num_kv_heads=self._num_kv_heads,
                ffn_size=spec.ffn_size // n,
            ),
        )

    @property
    def num_tokens(self) -> int:
        """Rows of the embedding that each rank has; the last rank's are filled up with zeros."""
        return ceil_div(self.arch.spec.vocab_size, self.num_ranks)

    @property
    def first_token(self) -> int:
        """The token of this rank's first row."""
        return self.rank * self.num_tokens

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        """This rank's part of a tensor with a name of Hugging Face's, in the tensor's memory if
        it can be.
        """
        module, kind = name.split(".")[-2:]
        size = self.arch.spec.head_size
        if module in BY_TOKEN:
            return self._rows_of_tokens(tensor)
        if module in BY_KV_HEAD:
            first, end = self._first_kv_head * size, self._end_kv_head * size
            return tensor[first:end]
        if module in BY_OUTPUT:
            return tensor.chunk(self.num_ranks)[self.rank]
        if module in BY_INPUT and kind == "weight":
            return tensor.chunk(self.num_ranks, dim=1)[self.rank]
        return tensor

    def cut_kv_heads(self, scales: Tensor) -> Tensor:
        """This rank's part of scales, [..., num_kv_heads]."""
        return scales[..., self._first_kv_head : self._end_kv_head].clone()

    @property
    def _num_kv_heads(self) -> int:
        return max(1, self.arch.spec.num_kv_heads // self.num_ranks)

    @property
    def _first_kv_head(self) -> int:
        return self.rank * self.arch.spec.num_kv_heads // self.num_ranks

    @property
    def _end_kv_head(self) -> int:
        return self._first_kv_head + self._num_kv_heads

    def _rows_of_tokens(self, tensor: Tensor) -> Tensor:
        own = tensor[self.first_token : self.first_token + self.num_tokens]
        missing = self.num_tokens - len(own)
        return F.pad(own, (0, 0, 0, missing)) if missing else own


def weights_of(shard: Shard, weights: str, seed: int, device: str, dtype: torch.dtype) -> Weights:
    """A shard's weights: random, with those of the whole model, or from a folder."""
    if weights == "random":
        return random_weights(shard.arch, seed, device, dtype, shard)
    return load_weights(shard.arch, Path(weights), device, dtype, shard)
