"""One GPU's shard of a model: its heads, and its layers without attention in torch, with the real matrix shapes."""

import torch
import torch.nn.functional as F
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.kernels.measure.timing import num_rotations
from testbed.kernels.verify.reference import Shape


class Layers:
    """Random weights of the output projection and of a few layers, larger in total than the L2 cache."""

    def __init__(self, model: ModelSpec, num_gpus: int) -> None:
        self.model = model
        hidden, ffn, size = model.hidden_size, model.ffn_size // num_gpus, model.head_size
        self.num_heads, self.num_kv_heads = model.num_heads // num_gpus, max(1, model.num_kv_heads // num_gpus)
        self.q_width, self.kv_width = self.num_heads * size, self.num_kv_heads * size
        self.gated = model.ffn_matrices == 3
        count = min(model.num_layers, num_rotations(2 * model.layer_params // num_gpus))
        shapes = {
            "qkv": (self.q_width + 2 * self.kv_width, hidden),
            "out": (hidden, self.q_width),
            "up": ((1 + self.gated) * ffn, hidden),
            "down": (hidden, ffn),
        }
        self.layers = [{name: _weight(shape) for name, shape in shapes.items()} for _ in range(count)]
        self.head = _weight((model.vocab_size // num_gpus, hidden))
        self.gain = torch.ones(hidden, dtype=torch.float16, device="cuda")

    def norm(self, x: Tensor) -> Tensor:
        """RMSNorm for gated models (LLaMA), LayerNorm for the others (OPT)."""
        width = (x.shape[1],)
        return F.rms_norm(x, width, self.gain, 1e-5) if self.gated else F.layer_norm(x, width, self.gain, self.gain)

    def project(self, x: Tensor, layer: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Norm, then q, k and v of every token, as views of one product."""
        qkv = F.linear(self.norm(x), layer["qkv"])
        size = self.model.head_size
        q, k, v = torch.split(qkv, [self.q_width, self.kv_width, self.kv_width], dim=1)
        return q.unflatten(1, (-1, size)), k.unflatten(1, (-1, size)), v.unflatten(1, (-1, size))

    def feed_forward(self, x: Tensor, attended: Tensor, layer: dict[str, Tensor]) -> Tensor:
        """Output projection, residual, norm, feed-forward, residual."""
        x = x + F.linear(attended.flatten(1), layer["out"])
        up = F.linear(self.norm(x), layer["up"])
        if self.gated:
            gate, up = up.chunk(2, dim=1)
            up = F.silu(gate) * up
        else:
            up = F.relu(up)
        return x + F.linear(up, layer["down"])

    def project_out(self, x: Tensor, head: Tensor) -> Tensor:
        """The final norm and the output projection."""
        return F.linear(self.norm(x), head)

    def linear(self, x: Tensor, attended: Tensor, layer: dict[str, Tensor]) -> None:
        """A layer without attention and the cache write."""
        self.project(x, layer)
        self.feed_forward(x, attended, layer)


def shard_shape(model: ModelSpec, num_gpus: int, block_size: int = 16) -> Shape:
    """The heads on one of num_gpus GPUs under tensor parallelism."""
    if model.num_heads % num_gpus or (model.num_kv_heads % num_gpus and num_gpus % model.num_kv_heads):
        raise InputError(
            f"{model.name}: {model.num_heads}/{model.num_kv_heads} heads do not split over {num_gpus} GPUs"
        )
    kv_heads = max(1, model.num_kv_heads // num_gpus)
    return Shape(model.num_heads // num_gpus, kv_heads, model.head_size, block_size, torch.float16)


def _weight(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, dtype=torch.float16, device="cuda") * float(shape[1] ** -0.5)
