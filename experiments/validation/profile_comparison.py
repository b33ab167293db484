"""Two profiles of one model's shard on the same shapes, section by section: those at which the second was measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.attention import Attention
from testbed.cost.interpolation import Knots
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import Choices, has, included, rows

Profile = Mapping[str, Any]
Key = tuple[Any, ...]
SECTIONS = ("linear", "output_head", "decode_attention", "prefill_attention", "all_reduce")
ITERATION = ("linear", "output_head", "decode_attention")
BARE = Choices(
    spread="equal", overhead_s=0.0, overhead_per_request_s=0.0, overhead_per_token_s=0.0, cuda_graph_sizes=()
)


@dataclass(frozen=True)
class SectionErrors:
    """How far the first profile is off the second in one section.

    errors: first / second - 1 at each measured shape that lies in the first one's grid; outside: how many do not.
    """

    section: str
    errors: np.ndarray
    outside: int

    def percent(self, of: Callable[[np.ndarray], float]) -> float:
        """A statistic of the errors in percent, not a number where no shape is in both grids."""
        return 100 * of(self.errors) if len(self.errors) else float("nan")


def compare(first: Profile, second: Profile) -> Iterator[SectionErrors]:
    """Every section that both have, then a whole decode iteration without software."""
    one_shape = ModelSpec(**first["model"]).is_shaped_like(ModelSpec(**second["model"]))
    if not one_shape or first["num_gpus"] != second["num_gpus"]:
        names = [f"{profile['model']['name']} on {profile['num_gpus']} GPU(s)" for profile in (first, second)]
        raise InputError(f"the profiles are of {names[0]} and of {names[1]}; give two of the same model's shard")
    both = [section for section in SECTIONS if has(first, section) and has(second, section)]
    one, other = SectionTimes(first), SectionTimes(second)
    for section in both:
        yield _errors(section, section, one, other)
    if set(ITERATION) <= set(both):
        yield _errors("decode iteration", "decode_attention", one, other)


class SectionTimes:
    """Picoseconds of one shape by section; attention is that of one layer with the cache write that belongs to it."""

    def __init__(self, profile: Profile) -> None:
        model = ModelSpec(**profile["model"])
        self._profile = profile
        self._layers = model.num_layers
        self._cost = ProfileCost(model, None, profile, BARE)
        self._attention = Attention(profile, BARE, model.num_layers)
        apart = has(profile, "cache_write") and not included(profile, "cache_write")
        self._write = self._curve("cache_write") if apart else lambda count: 0

    def by(self, section: str) -> Callable[[Key], int]:
        """The time of a shape, or of a whole decode iteration."""
        if section == "decode iteration":
            return lambda key: self._cost.iteration(_decode(key))
        if section == "decode_attention":
            return lambda key: self._attention(_decode(key)) // self._layers + self._write(key[0])
        if section == "prefill_attention":
            return self._prefill
        if section == "all_reduce":
            points = rows(self._profile, section)
            return lambda key: Knots((k[1], ps) for k, ps in points if k[0] == key[0])(key[1])
        curve = self._curve(section)
        return lambda key: curve(key[0])

    def shapes(self, section: str) -> list[Key]:
        """The measured shapes; of decodes those by (num_seqs, total_context), at block size 16 and equal lengths
        where there are others."""
        keys = [key for key, _ in rows(self._profile, section)]
        if section == "decode_attention" and len(self._profile["sections"][section]["axes"]) == 4:
            keys = [key[2:] for key in keys if key[:2] == (16, "equal")]
        return keys

    def _prefill(self, key: Key) -> int:
        count, new, past = key
        work = Work(prefill=((new, past),) * count)
        return self._attention(work) // self._layers + self._write(count * new)

    def _curve(self, section: str) -> Callable[[int], int]:
        return Knots((key[0], ps) for key, ps in rows(self._profile, section))


def _decode(key: Key) -> Work:
    num_seqs, context = key
    return Work(num_seqs, context, -(-context // num_seqs))


def _errors(name: str, section: str, one: SectionTimes, other: SectionTimes) -> SectionErrors:
    shapes = other.shapes(section)
    inside = [key for key, there in zip(shapes, inside_of(section, shapes, one.shapes(section)), strict=True) if there]
    first, second = one.by(name), other.by(name)
    return SectionErrors(name, np.array([first(key) / second(key) - 1 for key in inside]), len(shapes) - len(inside))


def inside_of(section: str, shapes: Sequence[Key], known: Sequence[Key]) -> Iterator[bool]:
    """Whether each shape lies among the known ones: some are at least as large on every axis, some no larger."""
    sizes, grid = (_sizes(section, np.array(keys)) for keys in (shapes, known))
    for size in sizes:
        yield bool((grid <= size).all(axis=1).any() and (grid >= size).all(axis=1).any())


def _sizes(section: str, keys: np.ndarray) -> np.ndarray:
    """Of a decode the mean context in place of all tokens."""
    return np.stack([keys[:, 0], keys[:, 1] // keys[:, 0]], axis=1) if section.endswith("decode_attention") else keys
