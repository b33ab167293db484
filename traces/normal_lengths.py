"""Conversations of normally distributed lengths, as GuideLLM's synthetic text has them."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError, check_least
from testbed.core.request import Rows, Turns
from testbed.core.units import NumTokens, PositiveCount, PositiveTokens, Seconds
from testbed.traces.contents import owned_ids, tokens_per_id
from testbed.traces.reader import Trace, stream

Table = NDArray[Any]  # [conversations, turns]

WIDTH = 5  # a length is at most so many standard deviations from the mean


class Spread(NamedTuple):
    """A length: its mean, standard deviation and limits in tokens; None as GuideLLM's defaults."""

    mean: float
    stdev: float | None
    least: float | None
    most: float | None
    floor: float = 1

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the most that are drawn."""
        reach = WIDTH * (self.stdev or 0)
        least = max(self.floor, self.mean - reach) if self.least is None else self.least
        return least, self.mean + reach if self.most is None else self.most

    def draw(self, size: int, rng: np.random.Generator) -> Table:
        """Draws by GuideLLM's rule: normal and cut; without a deviation any whole number between
        the limits, or the only value.
        """
        least, most = self.limits
        if self.stdev:
            return np.clip(rng.normal(self.mean, self.stdev, size), least, most)
        if least == most:
            return np.full(size, float(least))
        return rng.integers(round(least), round(most) + 1, size)


@dataclass(kw_only=True, eq=False)
class NormalLengths(Trace):
    """GuideLLM's synthetic text (0.8): lengths in tokens by mean, standard deviation and limits.

    A length is normal, cut to the limits and rounded; without a deviation it is uniform between
    the limits. Limits that are not given are five deviations away, and at least 1. Every
    conversation has `turns` turns: its next prompt is all before it, answers included, and so many
    new tokens. Conversations start with one of prefix_count prefixes of prefix_tokens tokens.
    delay_s, delay_stdev_s: the think time before a turn after the first, which
    arrivals=sessions heeds. A conversation ends before its first prompt that is too long.
    """

    prompt_tokens: PositiveTokens
    output_tokens: PositiveTokens
    prompt_tokens_stdev: NumTokens | None = None
    prompt_tokens_min: PositiveTokens | None = None
    prompt_tokens_max: PositiveTokens | None = None
    output_tokens_stdev: NumTokens | None = None
    output_tokens_min: PositiveTokens | None = None
    output_tokens_max: PositiveTokens | None = None
    prefix_tokens: NumTokens = 0
    prefix_count: PositiveCount = 1
    turns: PositiveCount = 1
    delay_s: Seconds = 0.0
    delay_stdev_s: Seconds = 0.0
    num_conversations: PositiveCount = 1000

    def __post_init__(self) -> None:
        least = {
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "prefix_count": self.prefix_count,
            "turns": self.turns,
            "num_conversations": self.num_conversations,
        }
        check_least(1, **least)
        check_least(0, prefix_tokens=self.prefix_tokens)
        for name in ("prompt_tokens", "output_tokens"):
            least, most = (getattr(self, f"{name}_{end}") for end in ("min", "max"))
            if (least or 1) > (most or least or 1):
                raise InputError(
                    f"trace.{name}_min={least}: is above trace.{name}_max={most} (swap them)"
                )
            lowest, highest = self._spread(name).limits
            if lowest > highest:
                raise InputError(
                    f"trace.{name}={getattr(self, name)}: lengths would be from {lowest:g} to "
                    f"{highest:g} tokens (give trace.{name}_min and trace.{name}_max on both sides "
                    f"of it)"
                )

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """num_rows conversations of one turn; with None num_conversations of all their turns."""
        if num_rows is None:
            return self._talks(self.num_conversations, seed, max_len)
        if self.turns > 1:
            raise InputError(
                f"trace.turns={self.turns}: a turn is sent after the answer before it (choose "
                "arrivals=sessions)"
            )
        rows = self._talks(num_rows, seed, max_len)
        if len(rows) < num_rows:
            raise InputError(
                f"trace.prompt_tokens={self.prompt_tokens}: {num_rows - len(rows):,} of "
                f"{num_rows:,} requests have {max_len:,} tokens or more (lower "
                "trace.prompt_tokens_max, or raise workload.max_len)"
            )
        return replace(rows, turns=None)

    def _talks(self, count: int, seed: int, max_len: int | None) -> Rows:
        """The turns of `count` conversations, each until its first that is too long."""
        shape = count, self.turns
        new, outputs = (
            np.rint(self._spread(name).draw(count * self.turns, stream(seed, name))).astype(
                np.int64
            )
            for name in ("prompt_tokens", "output_tokens")
        )
        new, outputs = new.reshape(shape), outputs.reshape(shape)
        ends = np.cumsum(new + outputs, axis=1) + self.prefix_tokens
        fits = np.full(shape, fill_value=True) if max_len is None else ends < max_len
        return self._of_turns(ends - outputs, outputs, fits, self._waits(shape, seed), seed)

    def _of_turns(
        self,
        prompts: Table,
        outputs: Table,
        fits: Table,
        waits: Table,
        seed: int,
    ) -> Rows:
        """The turns that fit as rows; all arguments but seed have the shape [talks, turns]."""
        beginnings = stream(seed, "prefixes").integers(0, self.prefix_count, len(prompts))
        talk, turn = np.nonzero(fits)
        talk_of_row = np.unique(talk, return_inverse=True)[1]
        each = tokens_per_id(self.prefix_tokens)
        ids = owned_ids(prompts[fits], talk_of_row, self.prefix_tokens, beginnings[talk], each)
        after: list[tuple[int, ...]] = [
            () if number == 0 else (row - 1,) for row, number in enumerate(turn.tolist())
        ]
        links = Turns(talk_of_row, after, waits[fits], np.zeros(len(after)))
        return Rows(prompts[fits], outputs[fits], prompt_ids=ids, tokens_per_id=each, turns=links)

    def _spread(self, name: str) -> Spread:
        ends = (getattr(self, f"{name}_{part}") for part in ("stdev", "min", "max"))
        return Spread(getattr(self, name), *ends)

    def _waits(self, shape: tuple[int, int], seed: int) -> Table:
        """Think times in s before each turn, none before the first; lengths do not depend on
        them.
        """
        spread = Spread(mean=self.delay_s, stdev=self.delay_stdev_s, least=None, most=None, floor=0)
        waits = spread.draw(shape[0] * shape[1], stream(seed, "delays")).reshape(shape)
        waits[:, 0] = 0
        return waits
