"""Conversations of normally distributed lengths, as GuideLLM's synthetic text has them."""

from dataclasses import dataclass, replace
from statistics import NormalDist
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
FAR_OFF = 0.1  # of a mean that is asked: cuts that move it further are said


class Spread(NamedTuple):
    """A length in tokens or a time in s: its mean, standard deviation and limits; None as
    GuideLLM's defaults. whole: it is a whole number, of at least `floor`.
    """

    mean: float
    stdev: float | None
    least: float | None
    most: float | None
    floor: float = 1
    whole: bool = True

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the most that are drawn."""
        reach = WIDTH * (self.stdev or 0)
        least = max(self.floor, self.mean - reach) if self.least is None else self.least
        return least, self.mean + reach if self.most is None else self.most

    @property
    def drawn_mean(self) -> float:
        """The mean of what is drawn, which cuts and uniform limits move from the one asked."""
        least, most = self.limits
        if not self.stdev:
            return (least + most) / 2
        bell = NormalDist()
        low, high = ((limit - self.mean) / self.stdev for limit in (least, most))
        below, above = bell.cdf(low), bell.cdf(-high)
        between = self.mean * (1 - below - above) + self.stdev * (bell.pdf(low) - bell.pdf(high))
        return least * below + most * above + between

    def draw(self, size: int, rng: np.random.Generator) -> Table:
        """Draws by GuideLLM's rule: normal and cut; without a deviation any value between the
        limits, or the only one.
        """
        least, most = self.limits
        drawn: Table
        if self.stdev:
            drawn = np.clip(rng.normal(self.mean, self.stdev, size), least, most)
        elif least == most:
            drawn = np.full(size, float(least))
        elif self.whole:
            drawn = rng.integers(round(least), round(most) + 1, size)
        else:
            drawn = rng.uniform(least, most, size)
        return np.rint(drawn).astype(np.int64) if self.whole else drawn


@dataclass(kw_only=True, eq=False)
class NormalLengths(Trace):
    """GuideLLM's synthetic text (0.8): lengths in tokens by mean, standard deviation and limits.

    A length is normal, cut to the limits and rounded; without a deviation it is uniform between
    the limits. Limits that are not given are five deviations away, and at least 1. Every
    conversation has `turns` turns: its next prompt is all before it, answers included, and new
    tokens. Conversations start with one of prefix_count prefixes of prefix_tokens tokens.
    delay_s, delay_stdev_s, delay_min_s, delay_max_s: the think time before each turn after
    the first, which arrivals=sessions heeds; it is drawn once for a conversation, so that a slow
    one stays slow. A conversation ends before its first prompt that is too long.
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
    delay_min_s: Seconds | None = None
    delay_max_s: Seconds | None = None
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
            self._check(name, 1, "tokens")
        self._check("delay", 0, "s", "_s")

    def _check(self, name: str, floor: int, unit: str, end: str = "") -> None:
        """Refuse limits that leave nothing between them."""
        mean, low, high = (f"trace.{name}{part}{end}" for part in ("", "_min", "_max"))
        spread = self._spread(name, floor, end)
        least = floor if spread.least is None else spread.least
        if spread.most is not None and least > spread.most:
            raise InputError(
                key=low, value=least, problem=f"is above {high}={spread.most}", remedy="swap them"
            )
        lowest, highest = spread.limits
        kind = "lengths" if spread.whole else "waits"
        if lowest > highest:
            raise InputError(
                key=mean,
                value=spread.mean,
                problem=f"{kind} would be from {lowest:g} to {highest:g} {unit}",
                remedy=f"give {low} and {high} on both sides of it",
            )

    def lengths_note(self) -> str | None:
        """The mean lengths that the limits move far from those asked; None if they move none."""
        moved = []
        for name in ("prompt_tokens", "output_tokens"):
            spread = self._spread(name)
            if abs(spread.drawn_mean - spread.mean) > FAR_OFF * spread.mean:
                least, most = spread.limits
                moved.append(
                    f"trace.{name}={spread.mean:g} draws a mean of {spread.drawn_mean:,.0f}, for "
                    f"lengths are from {least:,.0f} to {most:,.0f}, as GuideLLM's"
                )
        return "; ".join(moved) or None

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """num_rows conversations of one turn; with None num_conversations of all their turns."""
        if num_rows is None:
            return self._talks(self.num_conversations, seed, max_len)
        if self.turns > 1:
            raise InputError(
                key="trace.turns",
                value=self.turns,
                problem="a turn is sent after the answer before it",
                remedy="arrivals=sessions arrivals.at_once=N in place of a rate and a duration",
            )
        rows = self._talks(num_rows, seed, max_len)
        if len(rows) < num_rows:
            raise InputError(
                key="trace.prompt_tokens",
                value=self.prompt_tokens,
                problem=(
                    f"{num_rows - len(rows):,} of {num_rows:,} requests have {max_len:,} tokens or "
                    "more"
                ),
                remedy="lower trace.prompt_tokens_max, or raise workload.max_len",
            )
        return replace(rows, turns=None)

    def _talks(self, count: int, seed: int, max_len: int | None) -> Rows:
        """The turns of `count` conversations, each until its first that is too long."""
        shape = count, self.turns
        new, outputs = (
            self._lengths(name, shape, seed) for name in ("prompt_tokens", "output_tokens")
        )
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
        ids, answer_id = owned_ids(
            prompts[fits],
            talk_of_row,
            self.prefix_tokens,
            beginnings[talk],
            each,
            outputs[fits],
        )
        after: list[tuple[int, ...]] = [
            () if number == 0 else (row - 1,) for row, number in enumerate(turn.tolist())
        ]
        links = Turns(talk_of_row, after, waits[fits], np.zeros(len(after)))
        return Rows(
            prompts[fits],
            outputs[fits],
            prompt_ids=ids,
            tokens_per_id=each,
            turns=links,
            answer_id=answer_id,
        )

    def _lengths(self, name: str, shape: tuple[int, int], seed: int) -> Table:
        """New tokens of each turn, or those of its answer."""
        return self._spread(name).draw(shape[0] * shape[1], stream(seed, name)).reshape(shape)

    def _spread(self, name: str, floor: int = 1, end: str = "") -> Spread:
        values = (getattr(self, f"{name}{part}{end}") for part in ("", "_stdev", "_min", "_max"))
        mean, stdev, least, most = values
        return Spread(mean, stdev, least, most, floor, whole=not end)

    def _waits(self, shape: tuple[int, int], seed: int) -> Table:
        """Think times in s before each turn, none before the first: one of each conversation.
        Lengths do not depend on them.
        """
        drawn = self._spread("delay", 0, "_s").draw(shape[0], stream(seed, "delays"))
        waits = np.repeat(drawn[:, np.newaxis], shape[1], axis=1)
        waits[:, 0] = 0
        return waits
