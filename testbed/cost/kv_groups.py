"""Attention of models with sliding windows or states: a table for each KV group, added up."""

from collections.abc import Callable, Mapping
from statistics import median_high
from typing import Any

from testbed.core.errors import InputError
from testbed.core.slots import ceil_div
from testbed.core.specs import ModelSpec
from testbed.cost.attention_times import Attention, DecodeTable, Prefill, PrefillTable
from testbed.cost.interpolation import Knots
from testbed.cost.model import UNBOUNDED, Affine, Work
from testbed.cost.sections import Choices, Rows, table

Decodes = Callable[[Work], Affine]
Prefills = Callable[[Prefill], int]


class KvGroups:
    """All layers' attention of a model whose KV groups differ; a section that is not there is named
    when needed.
    """

    def __init__(self, profile: Mapping[str, Any], choices: Choices, model: ModelSpec) -> None:
        layers = {group.name: group.num_layers for group in model.groups}
        self._full = Attention(profile, choices, layers["full"]) if "full" in layers else None
        self._decodes = list[Decodes]()
        self._prefills = list[Prefills]()
        if model.window:
            self._add_window(profile, model.window.size, model.window.num_layers)
        if model.states:
            self._add_states(profile, model.states.num_layers)

    def _add_window(self, profile: Mapping[str, Any], size: int, num_layers: int) -> None:
        def decodes(points: Rows) -> Decodes:
            return WindowTable(points, size, num_layers).span

        def prefills(points: Rows) -> Prefills:
            return PrefillTable(points, num_layers)

        self._decodes.append(table(profile, "window_decode_attention", decodes))
        self._prefills.append(table(profile, "window_prefill_attention", prefills))

    def _add_states(self, profile: Mapping[str, Any], num_layers: int) -> None:
        def decodes(points: Rows) -> Decodes:
            return _by_seqs(points, num_layers)

        def prefills(points: Rows) -> Prefills:
            return PrefillTable(points, num_layers)

        self._decodes.append(table(profile, "state_decode", decodes))
        self._prefills.append(table(profile, "state_prefill", prefills))

    def __call__(self, work: Work) -> int:
        time_ps = self._full(work) if self._full else 0
        if work.decode_seqs:
            time_ps += sum(decodes(work).first_ps for decodes in self._decodes)
        if work.prefill:
            time_ps += sum(prefills(work.prefill) for prefills in self._prefills)
        return time_ps

    def span(self, work: Work) -> Affine:
        """Decode iterations in a row, the first of which is `work`."""
        first, growth, steps = (
            self._full.span(work)
            if self._full
            else Affine(first_ps=0, growth_ps=0, steps=UNBOUNDED)
        )
        for decodes in self._decodes:
            affine = decodes(work)
            first += affine.first_ps
            growth += affine.growth_ps
            steps = min(steps, affine.steps)
        return Affine(first, growth, steps)


def _by_seqs(points: Rows, num_layers: int) -> Decodes:
    curve = Knots((key[0], ps * num_layers) for key, ps in points)
    return lambda work: Affine(curve(work.decode_seqs), growth_ps=0, steps=UNBOUNDED)


class WindowTable:
    """Decode attention of the layers with a window of `size` tokens, by points of (num_seqs,
    total_context).

    Shares of batches of longer and of shorter sequences are as PROFILE_FORMAT.md says; a kernel
    reads one block more beyond the window than within it.
    """

    def __init__(self, points: Rows, size: int, num_layers: int) -> None:
        self._size = size
        self._shorter = DecodeTable(
            [(key, ps) for key, ps in points if key[1] <= size * key[0]], num_layers
        )
        beyond: dict[int, list[int]] = {}
        for (num_seqs, context), ps in points:
            if context > size * num_seqs:
                beyond.setdefault(num_seqs, []).append(ps * num_layers)
        self._beyond = Knots((n, median_high(ps)) for n, ps in beyond.items()) if beyond else None

    def span(self, work: Work) -> Affine:
        """Iterations in a row in which the shorter sequences read one token more each time, up to
        the next knot.
        """
        if not work.windows:
            raise InputError(
                key="work.windows",
                problem=f"is empty; it counts what decodes read in windows of {self._size} tokens",
            )
        num_seqs, reads = work.decode_seqs, work.windows[0]
        growing, curve = reads.growing, self._shorter.curve(num_seqs)
        all_longer_ps = self._beyond(num_seqs) if self._beyond else curve(num_seqs * self._size)
        longer_ps = all_longer_ps * (num_seqs - growing) // num_seqs
        if not growing:
            return Affine(longer_ps, growth_ps=0, steps=UNBOUNDED)
        short_tokens = max(0, reads.tokens - (num_seqs - growing) * self._size)
        # The context of a batch of num_seqs sequences that are as long as the shorter ones
        context = short_tokens * num_seqs // growing
        time_ps, slope, end = curve.piece(context)
        shorter_ps = slope * short_tokens + growing * (time_ps - slope * context) // num_seqs
        steps = reads.steps
        if end != UNBOUNDED:
            to_end = ceil_div(end * growing - short_tokens * num_seqs, growing * num_seqs)
            steps = min(steps, to_end)
        return Affine(longer_ps + shorter_ps, slope * growing, steps)
