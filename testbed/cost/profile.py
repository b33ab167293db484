"""Prices measured on a GPU, as a profile holds them: the JSON that `testbed calibrate` and `import-profile` write."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.records import record
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.attention_prices import Attention
from testbed.cost.choices import Choices
from testbed.cost.layer_prices import Layers
from testbed.cost.model import Affine, CostModel, Work, extra_ps, transfers, with_swaps
from testbed.cost.move_tables import HostLink, SizedTable
from testbed.cost.sections import PROFILES, Rows, has, read_profile, table
from testbed.cost.software import Software

__all__ = ["PROFILES", "Choices", "ProfileCost", "read_profile"]

SwapTime = Callable[[int, int], int]
SWAP_STAND_IN = "not measured: bytes over the data sheet's link to the host"


class ProfileCost(CostModel):
    """Measured prices of one model's shard on one GPU; tensor-parallel GPUs work in step.

    A decode iteration of n sequences is affine in their total context between knots, so spans are cut at knots and
    fast-forwarding equals stepping bit for bit. All-reduces are measured ones if the profile has them, else a ring
    over the server's links, and so are swaps; with server None the shard is priced by itself, without either. Any other
    section that the profile has not is named when a price needs it.
    """

    def __init__(
        self,
        model: ModelSpec,
        server: ServerSpec | None,
        path: str | Path | Mapping[str, Any],
        choices: Choices | None = None,
    ) -> None:
        profile = path if isinstance(path, Mapping) else read_profile(path)
        num_gpus = server.num_gpus if server else profile["num_gpus"]
        _check_shape(profile, model, num_gpus)
        self.fingerprint: Mapping[str, Any] = profile["fingerprint"]
        self.choices = choices = choices or Choices()
        self._model = model
        self._layers = Layers(profile, model, server, choices)
        self._attention = Attention(profile, choices, model.num_layers)
        self._copy = table(profile, "block_copy", SizedTable)
        link = HostLink(model, server) if server and not has(profile, "swap") else None
        self._out: SwapTime = link or _swaps(profile, choices.swap, "out")
        self._in: SwapTime = link or _swaps(profile, choices.swap, "in")
        if link:
            self.fingerprint = {**self.fingerprint, "swap": SWAP_STAND_IN}
        self._software = Software(profile, choices, num_gpus)

    def iteration(self, work: Work) -> int:
        num_tokens, price = work.num_tokens, 0
        if num_tokens:
            price += self._layers.price(num_tokens, work.decode_seqs + len(work.prefill))
            price += self._layers.singly(num_tokens) if work.prefill else self._layers.together(num_tokens)
            price += self._software.running(num_tokens)
        price += self._attention(work) + sum(self._copy(length, count) for length, count in work.copies)
        if work.moves:
            price = self._with_swaps(price, work)
        price += extra_ps(work.extra, self.choices.extra_s) if work.extra else 0
        return price + self._software.serving(work)

    def decode(self, work: Work) -> Affine:
        num_seqs = work.decode_seqs
        attention = self._attention.span(work)
        first = self._layers.price(num_seqs, num_seqs) + self._software.running(num_seqs)
        first += self._software.serving(work) + attention.first_ps + self._layers.together(num_seqs)
        return record(Affine, (first, attention.growth_ps, attention.steps))

    def _with_swaps(self, computing_ps: int, work: Work) -> int:
        """Swaps both ways share a stream; fused, a run of adjacent blocks is one copy, and few are ever pending."""
        layers, tables = self._model.num_layers, {"out": self._out, "in": self._in}
        counts = transfers(work.moves)
        moving_ps = sum(tables[way](length, count) for (way, length), count in counts.items())
        if self.choices.swap_waits == "all in":
            coming_ps = sum(self._in(length, count) for (way, length), count in counts.items() if way == "in")
            return max(computing_ps + coming_ps, moving_ps)
        per_block = 2 * layers if self.choices.swap == "per block" else 1
        return with_swaps(computing_ps, moving_ps, per_block * sum(counts.values()), layers)


def _check_shape(profile: Mapping[str, Any], model: ModelSpec, num_gpus: int) -> None:
    """A profile prices the model and the number of GPUs that it was measured for; max_len is not part of a shape."""
    if ModelSpec(**{**profile["model"], "max_len": model.max_len}) != model or profile["num_gpus"] != num_gpus:
        name, degree = profile["model"]["name"], profile["num_gpus"]
        raise InputError(f"the profile is of {name} on {degree} GPU(s), asked for {model.name} on {num_gpus}")


def _swaps(profile: Mapping[str, Any], method: str, way: str) -> SwapTime:
    def of_way(points: Rows) -> SwapTime:
        return SizedTable((key[2:], ps) for key, ps in points if key[:2] == (method, way))

    return table(profile, "swap", of_way)
