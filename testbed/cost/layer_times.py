"""Everything of an iteration that depends on token counts only: matrix products, norms, cache
write, all-reduces.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.all_reduce_times import all_reduce, layer_s
from testbed.cost.interpolation import Knots, blend, bracket
from testbed.cost.sections import BALANCED, NEXT, Choices, Rows, rows, table

Curve = Callable[[int], int]


class Layers:
    """Times of all layers and of what runs once in an iteration, by scheduled tokens and by rows of
    output.

    Batches up to the largest of cuda_graph_sizes are padded to the next. An iteration with a prompt
    takes `eager` more for its tokens, because its kernels, or those of attention, are launched one
    by one; decodes alone `graph`, though these are one graph.
    """

    def __init__(
        self,
        profile: Mapping[str, Any],
        model: ModelSpec,
        server: ServerSpec | None,
        choices: Choices,
    ) -> None:
        sections = profile["sections"]
        included = {name for body in sections.values() for name in body.get("includes", ())}

        def curve(section: str, times: int) -> Curve:
            if section in included:
                return _nothing
            read = _stairs if sections.get(section, {}).get("between") == NEXT else Knots
            return table(
                profile, section, lambda points: read([(key[0], ps * times) for key, ps in points])
            )

        self._linear = curve("linear", model.num_layers)
        self._write = curve("cache_write", model.num_layers)
        self._head = curve("output_head", 1)
        self._once: Curve = _nothing
        if "once_per_iteration" in profile["sections"]:
            self._once = curve("once_per_iteration", 1)
        self._experts: Curve = _nothing
        if model.experts or choices.experts != BALANCED:
            self._experts = _experts(profile, model, choices.experts)
        self.eager = _launched(profile, "launched_eager", ())
        self.graph = _launched(profile, "launched_graph", (choices.kernel,))
        graph_sizes = choices.cuda_graph_sizes
        if graph_sizes is None:
            graph_sizes = profile.get("cuda_graph_sizes", ())
        self._sizes = sorted(graph_sizes)
        self._reduce: Curve = _nothing
        if server is not None and server.num_gpus > 1:
            self._reduce = all_reduce(profile, server)
        self._num_reduced = 2 * model.num_layers
        self._token_bytes = 2 * model.hidden_size
        waiting_s = layer_s(choices.parallel_layer_s, server.num_gpus) if server else 0.0
        self._waiting_ps = model.num_layers * round(waiting_s * PS)

    def time_ps(self, num_tokens: int, num_rows: int) -> int:
        """With num_rows rows of output."""
        return self.tokens_ps(num_tokens) + self._head(num_rows)

    def tokens_ps(self, num_tokens: int) -> int:
        """Without the rows of output."""
        place = bisect_left(self._sizes, num_tokens)
        padded = self._sizes[place] if place < len(self._sizes) else num_tokens
        reduced = self._num_reduced * self._reduce(padded * self._token_bytes)
        return (
            self._linear(padded)
            + self._write(num_tokens)
            + self._once(padded)
            + self._experts(padded)
            + reduced
            + self._waiting_ps
        )


def _experts(profile: Mapping[str, Any], model: ModelSpec, distribution: str) -> Curve:
    def of_distribution(points: Rows) -> Curve:
        measured = dict.fromkeys(key[0] for key, _ in points)
        if distribution not in measured:
            raise InputError(
                key="cost.choices.experts",
                value=distribution,
                problem="was not measured",
                remedy=f"choose of {', '.join(measured)}",
            )
        return Knots(
            (key[1], ps * model.num_expert_layers) for key, ps in points if key[0] == distribution
        )

    if not model.experts:
        raise InputError(
            key="cost.choices.experts",
            value=distribution,
            problem=f"{model.name} has no experts",
            remedy="leave it out",
        )
    return table(profile, "experts", of_distribution)


def _launched(profile: Mapping[str, Any], section: str, kind: tuple[str, ...]) -> Curve:
    """Linear between measured counts, level beyond both ends; it may fall, so no span of iterations
    is read off it.
    """
    points = rows(profile, section) if section in profile["sections"] else []
    measured = {key[-1]: ps for key, ps in sorted(points) if key[:-1] == kind}
    return level_beyond(measured) if measured else _nothing


def level_beyond(measured: Mapping[int, int]) -> Curve:
    """Linear between measured counts, in order, and level beyond both ends."""
    counts = list(measured)

    def at(count: int) -> int:
        count = min(max(count, counts[0]), counts[-1])
        low, high = bracket(counts, count)
        return blend(low, high, count, measured[low], measured[high])

    return at


def _nothing(count: int) -> int:
    return 0


def _stairs(points: list[tuple[int, int]]) -> Curve:
    """The time of the next measured count; beyond the last count its last line continues."""
    beyond, measured = Knots(points), dict(points)
    counts = sorted(measured)

    def at(count: int) -> int:
        if count > counts[-1]:
            return beyond(count)
        return measured[counts[bisect_left(counts, count)]]

    return at
