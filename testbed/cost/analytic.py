"""A roofline of a data sheet (section 2.2's arithmetic), with named efficiencies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from testbed.core.layers import KvGroup
from testbed.core.request import PS
from testbed.core.slots import record
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.core.units import PositiveShare, Seconds, Share
from testbed.cost.all_reduce_times import layer_s
from testbed.cost.iteration import IterationCost
from testbed.cost.model import UNBOUNDED, Affine, Launch, Moved, Work
from testbed.cost.software import OF_PROFILE, SoftwareTimes, charged
from testbed.cost.swap_overlap import swapped, with_swaps
from testbed.cost.transfer_times import TierLinks


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of the data sheet that kernels reach, and times that no data sheet has.

    experiments/conf/efficiencies/h200.yaml explains them. repeated_read and parallel_layer_s are
    those of `sections.Choices`. launch_s: the host launches an iteration with prompts, while the
    one before is computed if it is ahead.
    """

    attention_bandwidth: PositiveShare = 1.0
    repeated_read: Share = 1.0
    weight_bandwidth: PositiveShare = 1.0
    linear_flops: PositiveShare = 1.0
    layer_s: Seconds = 0.0
    launch_s: Seconds = 0.0
    prefill_flops: PositiveShare = 1.0
    copy_s: Seconds = 0.0
    all_reduce_s: Seconds = 0.0
    byte_kv_bandwidth: PositiveShare = 1.0
    byte_window_bandwidth: PositiveShare = 1.0
    parallel_layer_s: Mapping[int, Seconds] = field(default_factory=dict)


class AnalyticCost(IterationCost):
    """Every GPU stores 1/num_gpus of the weights and of each token's K and V (tensor parallelism,
    section 4.6).

    Sequences of a group run side by side on the GPU, so all but the first reader of a shared block
    find its K and V of a layer in the L2 cache, at the cost of `repeated_read`.
    """

    provenance: str = "roofline, not measured"

    def __init__(
        self,
        model: ModelSpec,
        server: ServerSpec,
        efficiencies: Efficiencies,
        software: SoftwareTimes = OF_PROFILE,
    ) -> None:
        self.model = model
        self._gpus = server.num_gpus
        self._gpu = server.gpu
        self._eff = efficiencies
        self.times, self.extra_s = software, software.extra_s
        self._layer_s = efficiencies.layer_s + layer_s(
            efficiencies.parallel_layer_s, server.num_gpus
        )
        self._launch_ps = round(efficiencies.launch_s * PS)
        self._software = charged(software, server.num_gpus, {})
        self.serving_ps = self._serving_ps
        self.software = software.name
        self.windows = (model.window.size,) if model.window else ()
        full, window = efficiencies.byte_kv_bandwidth, efficiencies.byte_window_bandwidth
        groups = model.groups_on(server.num_gpus)
        in_full = [group for group in groups if group.window is None]
        self._context_ps = round(self._attention_s(in_full, full) * PS)
        in_window = [group for group in groups if group.window is not None]
        self._window_ps = round(self._attention_s(in_window, window) * PS)
        self._token_bytes = model.kv_bytes_on(server.num_gpus) / server.num_gpus
        self._state_ps = round(_state_s(model, server) * PS)
        self._attending = [
            (group.window, group.num_layers * _query_share(model, group))
            for group in model.groups
            if not group.state_bytes
        ]
        latent = model.latent
        self._channels = (
            (model.head_size + latent.rope_size + latent.v_size) / 2 if latent else model.head_size
        )
        self._read_bytes = model.read_bytes(0.0)
        self._products_s = _products_s(model, server.gpu) / server.num_gpus
        self._linear_ps = cache(self._linear)
        self._tiers = TierLinks(model, server)
        self._link = self._tiers.link

    def launch(self, decode_seqs: int, num_prompts: int, prompt_tokens: int) -> Launch | None:
        if not num_prompts or not self._launch_ps:
            return None
        return record(Launch, (0, self._launch_ps, 0))

    def computing_ps(self, work: Work) -> int:
        num_tokens = work.num_tokens
        forward = self._linear_ps(num_tokens) if num_tokens else 0
        read = work.decode_context  # that would take as long if nothing were shared
        if work.decode_repeated:
            read += round(work.decode_repeated * self._eff.repeated_read) - work.decode_repeated
        computing = forward + max(read * self._context_ps, self._verification_ps(work))
        for new, num_stored in work.prefill:
            computing += self._prefill_ps(new, num_stored)
        if self.windows or self._state_ps:
            computing += self._window_ps * sum(reads.tokens for reads in work.windows)
            computing += self._state_ps * (work.decode_seqs + len(work.prefill))
        return computing

    def _serving_ps(self, work: Work) -> int:
        if num_tokens := work.num_tokens:
            return self._software.running(num_tokens) + self._software.serving(work)
        return work.forks * self._software.fork_ps

    def least(self, num_tokens: int) -> int:
        return self._linear_ps(num_tokens) + self._software.running(num_tokens)

    def decode(self, work: Work) -> Affine:
        growth = work.decode_seqs * self._context_ps
        steps = UNBOUNDED
        for reads in work.windows:
            growth += self._window_ps * reads.growing
            steps = min(steps, reads.steps)
        return record(Affine, (self.iteration(work), growth, steps))

    def _attention_s(self, groups: Sequence[KvGroup], byte_share: float) -> float:
        """Seconds of decode attention for a token of context in groups of layers, as memory or the
        peak bounds it.

        A latent is read once for all heads, which is why the peak may bound it: 2 FLOPs for each
        head and value.
        """
        model, gpu = self.model, self._gpu
        bandwidth = gpu.memory_bandwidth * self._eff.attention_bandwidth
        if (model.kv_dtype_bytes or model.dtype_bytes) == 1:
            bandwidth *= byte_share
        token_bytes = sum(group.num_layers * group.slot_bytes for group in groups)
        read_s = token_bytes / (bandwidth * self._gpus)
        if model.latent is None:
            return read_s
        num_layers = sum(group.num_layers for group in groups if group.slot_bytes)
        values = model.num_heads * (2 * model.latent.kv_rank + model.latent.rope_size) * num_layers
        return max(read_s, 2 * values / (self._gpus * gpu.fp16_flops * self._eff.linear_flops))

    def transfer(self, moves: tuple[Moved, ...]) -> int:
        return self._tiers(moves)

    def _linear(self, num_tokens: int) -> int:
        """All matrix products and all-reduces of a forward pass over num_tokens tokens."""
        experts, read_bytes = self.model.experts, self._read_bytes
        if experts:
            # A router without preferences: each token leaves out an expert with probability
            # 1 - per_token / count
            touched = experts.count * (1 - (1 - experts.per_token / experts.count) ** num_tokens)
            read_bytes = self.model.read_bytes(touched)
        read_s = read_bytes / self._gpus / (self._gpu.memory_bandwidth * self._eff.weight_bandwidth)
        compute_s = self._products_s * num_tokens / self._eff.linear_flops
        waiting_s = self.model.num_layers * self._layer_s + self._all_reduce_s(num_tokens)
        return round((max(read_s, compute_s) + waiting_s) * PS)

    def _all_reduce_s(self, num_tokens: int) -> float:
        """Two ring all-reduces a layer (Megatron-LM): each GPU sends 2 (n - 1) / n of the
        activations.
        """
        if self._gpus == 1:
            return 0.0
        ring_share = 2 * (self._gpus - 1) / self._gpus
        sent_bytes = ring_share * num_tokens * self.model.hidden_size * self.model.dtype_bytes
        one_s = self._eff.all_reduce_s + sent_bytes / self._gpu.link_bandwidth
        return 2 * self.model.num_layers * one_s

    def _verification_ps(self, work: Work) -> int:
        """The least time at the peak of attention of several queries in each decode, which read
        their context once; 0 without drafts, whose attention memory bounds.
        """
        if not work.draft_tokens:
            return 0
        queries = 1 + work.draft_tokens / work.decode_seqs
        layers = sum(num_layers for _, num_layers in self._attending)
        pairs = queries * work.decode_context * self.model.num_heads * layers
        flops = 4 * pairs * self._channels
        return round(flops / (self._gpus * self._gpu.fp16_flops * self._eff.prefill_flops) * PS)

    def _prefill_ps(self, new: int, num_stored: int) -> int:
        """Causal attention of `new` tokens: 4 FLOPs for each query, key and channel; at least the
        time in which K and V of the stored tokens are read once, as in a decode.
        """
        reading_ps = num_stored * self._context_ps
        reading_ps += sum(min(num_stored, size - 1) for size in self.windows) * self._window_ps
        flops = 0.0
        for window, num_layers in self._attending:
            pairs = pairs_of(new, num_stored, window)
            flops += 4 * pairs * self.model.num_heads * self._channels * num_layers
        peak = self._gpus * self._gpu.fp16_flops * self._eff.prefill_flops
        return max(round(flops / peak * PS), reading_ps)

    def copying_ps(self, copies: tuple[tuple[int, int], ...]) -> int:
        """Block copies read and write device memory."""
        copied = sum([length * count for length, count in copies])
        return round(2 * copied * self._token_bytes / self._gpu.memory_bandwidth * PS)

    def moving_behind(self, computing_ps: int, moves: tuple[Moved, ...]) -> int:
        """Swaps cross the host link, K and V of every layer apart."""
        layers = self.model.num_layers
        swaps = swapped(moves)
        copies_by_length = dict[int, int]()  # a call for K and one for V of every layer
        for one_way in swaps.values():
            for move in one_way:
                num_copies = copies_by_length.get(move.length, 0)
                copies_by_length[move.length] = num_copies + 2 * layers * move.num_transfers
        if self._link:
            moved_ps = sum(self._link.copied(way, one_way) for way, one_way in swaps.items())
        else:
            moved_ps = self._over_host_link_ps(copies_by_length)
        num_copies = sum(copies_by_length.values())
        computing_ps = with_swaps(computing_ps, moved_ps, num_copies, layers)
        return self._tiers.behind(computing_ps, moves, layers)

    def _over_host_link_ps(self, copies_by_length: Mapping[int, int]) -> int:
        """Picoseconds of copies over the data sheet's host link, by their length in slots."""
        copying_ps = 0
        for length, count in copies_by_length.items():
            copy_bytes = length * self._token_bytes / (2 * self.model.num_layers)
            copy_s = self._eff.copy_s + copy_bytes / self._gpu.host_bandwidth
            copying_ps += round(count * copy_s * PS)
        return copying_ps


def _products_s(model: ModelSpec, gpu: GpuSpec) -> float:
    """Seconds of a token's matrix products at the peak: 2 FLOPs for each weight. The output
    projection is never in FP8.
    """
    head = model.vocab_size * model.hidden_size
    in_fp8 = model.fp8_params(model.experts.per_token if model.experts else 0)
    others = model.active_params - head - in_fp8
    layers_s = others / gpu.fp16_flops + in_fp8 / (gpu.fp8_flops or gpu.fp16_flops)
    return 2 * (layers_s + head / gpu.fp16_flops)


def pairs_of(new: int, num_stored: int, window: int | None) -> float:
    """Pairs of a query and a key: each of `new` tokens sees those stored, and those before it; at
    most `window`.
    """
    if window is None or num_stored + new <= window:
        return new * num_stored + new * (new + 1) / 2
    # Queries that see fewer tokens than the window has
    early = max(min(new, window - num_stored), 0)
    return early * num_stored + early * (early + 1) / 2 + (new - early) * window


def _query_share(model: ModelSpec, group: KvGroup) -> float:
    """The size of the queries' heads in a group's layers, as a share of those of full attention."""
    if model.window is None or group.window is None or model.window.head_size is None:
        return 1
    return model.window.head_size / model.head_size


def _state_s(model: ModelSpec, server: ServerSpec) -> float:
    """Seconds in which a sequence's states are read and written; those of images are only read."""
    num_bytes = sum(group.num_layers * group.state_bytes for group in model.groups)
    passes = 1 if model.states and model.states.num_tokens else 2
    return passes * num_bytes / (server.gpu.memory_bandwidth * server.num_gpus)
