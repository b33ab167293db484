"""A roofline of a data sheet (section 2.2's arithmetic), with named efficiencies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from testbed.core.records import record
from testbed.core.request import PS
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.choices import layer_s
from testbed.cost.model import UNBOUNDED, Affine, CostModel, Work, extra_ps, transfers, with_swaps


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """What the data sheet does not say.

    overhead_s: software time of an iteration; overhead_per_request_s: more of it for each resident request.
    attention_bandwidth: share of the memory bandwidth that the decode attention kernel reaches. repeated_read: what a
    token of a shared block costs that another sequence reads too, as a share of a first read. weight_bandwidth,
    linear_flops: shares of memory bandwidth and peak that matrix products reach; layer_s: what the dependent kernels
    of a layer take beyond that. prefill_flops: share of the peak in prompt attention. copy_s: launch of one copy
    between host and device. all_reduce_s: latency of one all-reduce; parallel_layer_s: what a layer takes beyond that
    on so many GPUs, by number of GPUs (launches, waiting for each other); an empty table says nothing. extra_s: seconds
    of each thing that a policy counts by name.
    """

    overhead_s: float = 0.0
    overhead_per_request_s: float = 0.0
    attention_bandwidth: float = 1.0
    repeated_read: float = 1.0
    weight_bandwidth: float = 1.0
    linear_flops: float = 1.0
    layer_s: float = 0.0
    prefill_flops: float = 1.0
    copy_s: float = 0.0
    all_reduce_s: float = 0.0
    parallel_layer_s: Mapping[int, float] = field(default_factory=dict)
    extra_s: Mapping[str, float] = field(default_factory=dict)


class AnalyticCost(CostModel):
    """Every GPU holds 1/num_gpus of the weights and of each token's K and V (tensor parallelism, section 4.6).

    Sequences of a group run side by side on the GPU, so all but the first reader of a shared block find its K and V of
    a layer in the L2 cache, at the price of `repeated_read`.
    """

    def __init__(self, model: ModelSpec, server: ServerSpec, efficiencies: Efficiencies) -> None:
        self.model = model
        self._gpus = server.num_gpus
        self._gpu = server.gpu
        self._eff = efficiencies
        self._layer_s = efficiencies.layer_s + layer_s(efficiencies.parallel_layer_s, server.num_gpus)
        self._overhead_ps = round(efficiencies.overhead_s * PS)
        self._per_request_ps = round(efficiencies.overhead_per_request_s * PS)
        attention = server.gpu.memory_bandwidth * efficiencies.attention_bandwidth * server.num_gpus
        self._context_ps = round(model.kv_bytes_per_token / attention * PS)
        self._linear_ps = cache(self._linear)

    def iteration(self, work: Work) -> int:
        num_tokens = work.decode_seqs
        for new, _ in work.prefill:
            num_tokens += new
        forward = self._linear_ps(num_tokens) if num_tokens else 0
        software = self._software_ps(work.num_requests) if num_tokens else 0
        read = self._effective(work.decode_context, work.decode_repeated)
        computing = forward + read * self._context_ps + sum(self._prefill_ps(*p) for p in work.prefill)
        if work.copies or work.moves:
            computing = self._with_moves(computing, work)
        return computing + software + (extra_ps(work.extra, self._eff.extra_s) if work.extra else 0)

    def decode(self, work: Work) -> Affine:
        attention = self._effective(work.decode_context, work.decode_repeated) * self._context_ps
        first = self._linear_ps(work.decode_seqs) + self._software_ps(work.num_requests) + attention
        return record(Affine, (first, work.decode_seqs * self._context_ps, UNBOUNDED))

    def _software_ps(self, num_requests: int) -> int:
        return self._overhead_ps + num_requests * self._per_request_ps

    def _effective(self, context: int, repeated: int) -> int:
        """The context that would take as long if nothing were shared."""
        return context - repeated + round(repeated * self._eff.repeated_read) if repeated else context

    def _linear(self, num_tokens: int) -> int:
        """All matrix products and all-reduces of a forward pass over num_tokens tokens."""
        shard = self.model.linear_params / self._gpus
        read_s = shard * self.model.dtype_bytes / (self._gpu.memory_bandwidth * self._eff.weight_bandwidth)
        compute_s = 2 * shard * num_tokens / (self._gpu.fp16_flops * self._eff.linear_flops)
        waiting_s = self.model.num_layers * self._layer_s + self._all_reduce_s(num_tokens)
        return round((max(read_s, compute_s) + waiting_s) * PS)

    def _all_reduce_s(self, num_tokens: int) -> float:
        """Two ring all-reduces a layer (Megatron-LM): each GPU sends 2 (n - 1) / n of the activations."""
        if self._gpus == 1:
            return 0.0
        sent = 2 * (self._gpus - 1) / self._gpus * num_tokens * self.model.hidden_size * self.model.dtype_bytes
        return 2 * self.model.num_layers * (self._eff.all_reduce_s + sent / self._gpu.link_bandwidth)

    def _prefill_ps(self, new: int, stored: int) -> int:
        """Causal attention of `new` tokens: 4 FLOPs for each query, key and channel."""
        model = self.model
        pairs = new * stored + new * (new + 1) / 2
        flops = 4 * pairs * model.num_heads * model.head_size * model.num_layers
        return round(flops / (self._gpus * self._gpu.fp16_flops * self._eff.prefill_flops) * PS)

    def _with_moves(self, computing_ps: int, work: Work) -> int:
        """Block copies read and write device memory first; swaps cross the host link, K and V of every layer apart."""
        token, layers = self.model.kv_bytes_per_token / self._gpus, self.model.num_layers
        copied = sum(length * count for length, count in work.copies)
        copied_ps = round(2 * copied * token / self._gpu.memory_bandwidth * PS)
        counts, moved_ps = dict[int, int](), 0
        for (_, length), count in transfers(work.moves).items():
            counts[length] = counts.get(length, 0) + 2 * layers * count
        for length, count in counts.items():
            piece_s = self._eff.copy_s + length * token / (2 * layers) / self._gpu.host_bandwidth
            moved_ps += round(count * piece_s * PS)
        return with_swaps(copied_ps + computing_ps, moved_ps, sum(counts.values()), layers)
