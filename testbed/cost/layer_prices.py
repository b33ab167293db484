"""Everything of an iteration that depends on token counts only: matrix products, norms, cache write, all-reduces."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from testbed.core.request import PS
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.choices import Choices, layer_s
from testbed.cost.knots import Knots, Line
from testbed.cost.move_tables import AllReduce
from testbed.cost.sections import Rows, has, included, jumps, rows, table

Curve = Callable[[int], int]


class Layers:
    """Times of all layers and of what runs once in an iteration, by scheduled tokens and by rows of output.

    Where the profile or the choices list cuda_graph_sizes, a batch of at most the largest is padded to the next one. On
    several GPUs the choices say what each layer takes beyond that.
    """

    def __init__(
        self, profile: Mapping[str, Any], model: ModelSpec, server: ServerSpec | None, choices: Choices
    ) -> None:
        def curve(section: str, times: int) -> Curve:
            if included(profile, section):
                return lambda count: 0
            read = _stairs if jumps(profile, section) else _line
            return table(profile, section, lambda points: read(points, times))

        self._model = model
        self._linear, self._write = curve("linear", model.num_layers), curve("cache_write", model.num_layers)
        self._head = curve("output_head", 1)
        self._once = curve("once_per_iteration", 1) if has(profile, "once_per_iteration") else None
        self._singly = _launched(profile, "launched_singly", ())
        self._together = _launched(profile, "launched_together", (choices.kernel,))
        told = choices.cuda_graph_sizes
        self._sizes = sorted(profile.get("cuda_graph_sizes", ()) if told is None else told)
        self._reduce = AllReduce(profile, server)
        waiting_s = layer_s(choices.parallel_layer_s, server.num_gpus) if server else 0.0
        self._waiting_ps = model.num_layers * round(waiting_s * PS)
        self.price = cache(self._price)

    def singly(self, num_tokens: int) -> int:
        """What an iteration with a prompt takes beyond its kernels, because they are launched one by one."""
        return self._singly(num_tokens)

    def together(self, num_seqs: int) -> int:
        """What decodes alone take beyond their kernels, though these are one graph."""
        return self._together(num_seqs)

    def _price(self, num_tokens: int, num_rows: int) -> int:
        padded = self._padded(num_tokens)
        reduced = 2 * self._model.num_layers * self._reduce(padded * self._model.hidden_size * 2)
        once = self._once(padded) if self._once else 0
        return self._linear(padded) + self._head(num_rows) + self._write(num_tokens) + reduced + once + self._waiting_ps

    def _padded(self, num_tokens: int) -> int:
        if not self._sizes or num_tokens > self._sizes[-1]:
            return num_tokens
        return int(self._sizes[bisect_left(self._sizes, num_tokens)])


def _launched(profile: Mapping[str, Any], section: str, kind: tuple[str, ...]) -> Curve:
    """Whole iterations beyond their kernels, of one kind; nothing where nobody has measured them."""
    points = rows(profile, section) if has(profile, section) else []
    chosen = [(key[-1], ps) for key, ps in points if key[:-1] == kind]
    return Line(chosen) if chosen else lambda count: 0


def _line(points: Rows, times: int) -> Curve:
    return Knots((key[0], ps * times) for key, ps in points)


def _stairs(points: Rows, times: int) -> Curve:
    """What the next measured count takes; beyond the last one the last piece goes on."""
    beyond = Knots((key[0], ps * times) for key, ps in points)
    measured = {key[0]: ps * times for key, ps in points}
    counts = sorted(measured)

    def at(count: int) -> int:
        return measured[counts[bisect_left(counts, count)]] if count <= counts[-1] else beyond(count)

    return at
