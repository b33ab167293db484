"""Tiny models and schedulers for the engine's tests, and a forward pass that does not know
slots.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from ranks_in_threads import led_by_threads

from testbed.core.layers import Window
from testbed.core.request import Request
from testbed.core.specs import ModelSpec
from testbed.engine.wall_clock import StepClock
from testbed.kernels.engine.architecture import FAMILIES, Architecture
from testbed.kernels.engine.maths import rotary_table
from testbed.kernels.engine.parallel.shards import Shard
from testbed.kernels.engine.random_weights import random_weights
from testbed.kernels.engine.served_run import Options, assemble
from testbed.kernels.engine.weights import WHOLE
from testbed.memory.groups.grouped import Grouped
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.run.oracles import with_lengths
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

torch.set_num_threads(1)  # the models are tiny

SHAPES = {
    "opt": ModelSpec("opt", 2, 32, 4, 4, 8, 64, 2, 61, 128, True),
    "llama": ModelSpec("llama", 2, 32, 4, 2, 8, 48, 3, 61, 128),
    "qwen2": ModelSpec("qwen2", 2, 32, 4, 1, 8, 48, 3, 61, 128, True),
    "window": ModelSpec("window", 2, 32, 4, 2, 8, 48, 3, 61, 128, window=Window(9, 2)),
    "hybrid": ModelSpec("hybrid", 6, 32, 4, 2, 8, 48, 3, 61, 128, window=Window(9, 4)),
    "fp8": ModelSpec("fp8", 2, 32, 4, 2, 8, 48, 3, 61, 128, kv_dtype_bytes=1),
    "fp8 hybrid": ModelSpec(
        "fp8", 4, 32, 4, 2, 8, 48, 3, 61, 128, kv_dtype_bytes=1, window=Window(9, 3)
    ),
}
LENGTHS = [(30, 9), (7, 20), (50, 5), (3, 30), (40, 12), (12, 25)]


def architecture(family):
    return Architecture(
        SHAPES[family], family if family in FAMILIES else "llama", qkv_bias=family == "qwen2"
    )


def weights(arch, seed=0, part=WHOLE):
    return random_weights(arch, seed, "cpu", torch.float32, part)


def dense_logits(arch, w, tokens):
    """Logits at every position of one sequence: no cache, one head after the other, by torch's own
    attention.
    """
    x = w.embedding[tokens]
    if w.positions is not None:
        x = x + w.positions[: len(tokens)]
    for layer, window in zip(w.layers, arch.windows, strict=True):
        h = normed(x, layer.norm_1, arch.norm_eps)
        qkv = F.linear(h, layer.qkv.weight, layer.qkv.bias)
        q, k, v = qkv.split((arch.q_width, arch.kv_width, arch.kv_width), dim=1)
        x = x + F.linear(attend(arch, q, k, v, window), layer.out.weight, layer.out.bias)
        h = normed(x, layer.norm_2, arch.norm_eps)
        up = F.linear(h, layer.up.weight, layer.up.bias)
        half = up.shape[1] // 2
        up = torch.relu(up) if arch.is_opt else F.silu(up[:, :half]) * up[:, half:]
        x = x + F.linear(up, layer.down.weight, layer.down.bias)
    return F.linear(normed(x, w.norm, arch.norm_eps), w.head)


def normed(x, norm, eps):
    if norm.bias is not None:
        return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, eps)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * norm.weight


def attend(arch, q, k, v, window):
    size, heads = arch.spec.head_size, arch.spec.num_heads
    q, k, v = (x.view(len(x), -1, size).transpose(0, 1) for x in (q, k, v))
    if not arch.is_opt:
        q, k = turned(arch, q), turned(arch, k)
    if arch.spec.kv_dtype_bytes == 1:
        k, v = (x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) for x in (k, v))
    k, v = (x.repeat_interleave(heads // x.shape[0], dim=0) for x in (k, v))
    seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(0, 1).flatten(1)


def turned(arch, x):
    """RoPE by complex numbers."""
    table = rotary_table(arch, str(x.device))[: x.shape[1]]
    half = x.shape[2] // 2
    z = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * torch.complex(
        table[:, 0], table[:, 1]
    )
    return torch.cat([z.real, z.imag], dim=-1)


def pool(num_slots, host_slots=0):
    return PoolSpec(num_slots, 128, host(host_slots))


def engine(
    family="opt", policy=None, scheduler=None, spec=None, debug=True, num_ranks=1, **options
):
    """A CPU engine; `policy` and `scheduler` are made with the pool and with the policy. Ranks are
    threads.
    """
    arch = architecture(family)
    spec = replace(spec or pool(512, 512), groups=arch.spec.groups, num_layers=arch.spec.num_layers)
    lengths = {}
    made = with_lengths(policy or Paged, lengths)(spec)
    spec = made.pool if isinstance(made, Grouped) else spec
    built = with_lengths(scheduler or mixed, lengths)(made)
    chosen = Options(debug=debug, lengths=lengths, **({"clock": StepClock()} | options))
    if num_ranks == 1:
        return assemble(built, spec, arch, weights(arch), chosen)
    shard, *others = [Shard(arch, rank, num_ranks) for rank in range(num_ranks)]
    lead = led_by_threads([shard, *others], [weights(arch, part=part) for part in others])
    return assemble(built, spec, shard.local, weights(arch, part=shard), chosen, lead)


def mixed(policy, preemption=None, budget=64, max_num_seqs=16):
    return MixedPrefill(
        policy, preemption or Recompute(), max_num_batched_tokens=budget, max_num_seqs=max_num_seqs
    )


def requests(lengths, num_seqs=1, beam=False, **more):
    """Requests that arrive one a second."""
    return [Request(i, i * 10**12, *pair, num_seqs, beam, **more) for i, pair in enumerate(lengths)]


def greedy(arch, w, prompt, tokens):
    """The most likely token after the prompt and after each of these tokens but the last, in one
    forward pass.
    """
    return (
        dense_logits(arch, w, torch.tensor([*prompt, *tokens[:-1]]))[len(prompt) - 1 :]
        .argmax(1)
        .tolist()
    )
