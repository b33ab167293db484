"""Two profiles of one model's shard on the same shapes, section by section: those at which the second was measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.attention_prices import Attention
from testbed.cost.choices import Choices
from testbed.cost.knots import Knots
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import has, included, rows

Profile = Mapping[str, Any]
Key = tuple[Any, ...]
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
    """Every section that both can price, then a whole decode iteration without software."""
    _check_same(first, second)
    one, other = Prices(first), Prices(second)
    for section in ("linear", "output_head", "decode_attention", "prefill_attention", "all_reduce"):
        if has(first, section) and has(second, section):
            price = section.split("_attention")[0]
            yield _errors(section, _shapes(second, section), _shapes(first, section), one.by[price], other.by[price])
    decodes = [_shapes(profile, "decode_attention") for profile in (second, first)]
    if all(decodes) and all(has(profile, name) for profile in (first, second) for name in ("linear", "output_head")):
        yield _errors("decode iteration", *decodes, one.iteration, other.iteration)


class Prices:
    """Picoseconds of one shape by section; attention is that of one layer with the cache write that belongs to it."""

    def __init__(self, profile: Profile) -> None:
        model = ModelSpec(**profile["model"])
        self._layers = model.num_layers
        self._cost = ProfileCost(model, None, profile, BARE)
        self._attention = Attention(profile, BARE, model.num_layers)
        apart = has(profile, "cache_write") and not included(profile, "cache_write")
        self._write = _knots(profile, "cache_write") if apart else lambda count: 0
        self.by: dict[str, Callable[[Key], int]] = {"decode": self._decode, "prefill": self._prefill}
        for name in ("linear", "output_head"):
            if has(profile, name):
                self.by[name] = _by_count(profile, name)
        if has(profile, "all_reduce"):
            points = rows(profile, "all_reduce")
            self.by["all_reduce"] = lambda key: Knots((k[1], ps) for k, ps in points if k[0] == key[0])(key[1])

    def iteration(self, key: Key) -> int:
        """A decode iteration."""
        num_seqs, context = key
        return self._cost.iteration(Work(num_seqs, context, -(-context // num_seqs)))

    def _decode(self, key: Key) -> int:
        num_seqs, context = key
        work = Work(num_seqs, context, -(-context // num_seqs))
        return self._attention(work) // self._layers + self._write(num_seqs)

    def _prefill(self, key: Key) -> int:
        count, new, past = key
        work = Work(prefill=((new, past),) * count)
        return self._attention(work) // self._layers + self._write(count * new)


def _check_same(first: Profile, second: Profile) -> None:
    """Shapes are comparable where model and degree are; a name and the longest sequence do not matter."""

    def shape(profile: Profile) -> tuple[Any, ...]:
        model = {key: value for key, value in profile["model"].items() if key not in ("name", "max_len")}
        return profile["num_gpus"], *sorted(model.items())

    if shape(first) != shape(second):
        names = [f"{profile['model']['name']} on {profile['num_gpus']} GPU(s)" for profile in (first, second)]
        raise InputError(f"the profiles are of {names[0]} and of {names[1]}; give two of the same model's shard")


def _by_count(profile: Profile, section: str) -> Callable[[Key], int]:
    curve = _knots(profile, section)
    return lambda key: curve(key[0])


def _knots(profile: Profile, section: str) -> Callable[[int], int]:
    return Knots((key[0], ps) for key, ps in rows(profile, section))


def _shapes(profile: Profile, section: str) -> list[Key]:
    """The measured shapes of a section; of decodes those by (num_seqs, total_context), at block size 16 and equal
    lengths where there are others."""
    if not has(profile, section):
        return []
    keys = [key for key, _ in rows(profile, section)]
    if section == "decode_attention" and len(profile["sections"][section]["axes"]) == 4:
        keys = [key[2:] for key in keys if key[:2] == (16, "equal")]
    return keys


def _errors(
    section: str, shapes: Sequence[Key], grid: Sequence[Key], one: Callable[[Key], int], other: Callable[[Key], int]
) -> SectionErrors:
    inside = [key for key in shapes if _inside(section, key, grid)]
    errors = np.array([one(key) / other(key) - 1 for key in inside])
    return SectionErrors(section, errors, len(shapes) - len(inside))


def _inside(section: str, key: Key, grid: Sequence[Key]) -> bool:
    """Whether the shape lies among the measured ones: some are at least as large on every axis, some no larger."""
    by_mean = section.startswith("decode")
    shape, known = (_mean(key), [_mean(other) for other in grid]) if by_mean else (key, grid)
    least = min(shape[0] for shape in known)
    small = any(all(a <= b for a, b in zip(other, shape, strict=True)) for other in known) and shape[0] >= least
    return small and any(all(a >= b for a, b in zip(other, shape, strict=True)) for other in known)


def _mean(key: Key) -> Key:
    return key[0], key[1] // key[0]
