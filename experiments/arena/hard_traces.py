"""Workloads on which eviction orders differ by construction: prompts of one length, of which a rule
says which content comes next.
"""

from abc import abstractmethod

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows
from testbed.core.slots import ceil_div
from testbed.core.units import PositiveTokens
from testbed.traces.reader import Trace, stream

TOKENS_PER_ID = 16


class Stories(Trace):
    """Prompts of prompt_tokens tokens, each the whole of one of many stories without a common
    beginning; every answer has output_tokens tokens.
    """

    def __init__(
        self, prompt_tokens: PositiveTokens = 512, output_tokens: PositiveTokens = 32
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens

    @abstractmethod
    def stories(self, num_rows: int, rng: np.random.Generator) -> Column:
        """The number of the story of each prompt, in order."""

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """See Trace.rows; the prompts have no end."""
        if num_rows is None:
            raise InputError(
                key=type(self).__name__, problem="has no end", remedy="give arrivals.num_requests"
            )
        stories = self.stories(num_rows, stream(seed, "stories"))
        num_ids = ceil_div(self.prompt_tokens, TOKENS_PER_ID)
        return Rows(
            prompt_len=np.full(num_rows, self.prompt_tokens),
            output_len=np.full(num_rows, self.output_tokens),
            arrival_s=None,
            prompt_ids=[
                tuple(range(story * num_ids, (story + 1) * num_ids)) for story in stories.tolist()
            ],
            tokens_per_id=TOKENS_PER_ID,
        )


class Loop(Stories):
    """The same num_stories in a circle: LRU and FIFO evict what comes next."""

    def __init__(self, num_stories: int = 100, prompt_tokens: PositiveTokens = 512) -> None:
        super().__init__(prompt_tokens)
        self.num_stories = num_stories

    def stories(self, num_rows: int, rng: np.random.Generator) -> Column:
        return np.arange(num_rows) % self.num_stories


class Scan(Stories):
    """A share of the prompts occurs once; each other one is a popular story, by Zipf's law."""

    def __init__(
        self,
        num_stories: int = 60,
        share_once: float = 0.5,
        prompt_tokens: PositiveTokens = 512,
    ) -> None:
        super().__init__(prompt_tokens)
        self.num_stories = num_stories
        self.share_once = share_once

    def stories(self, num_rows: int, rng: np.random.Generator) -> Column:
        weights = 1 / np.arange(1, self.num_stories + 1)
        popular = rng.choice(self.num_stories, num_rows, p=weights / weights.sum())
        comes_once = rng.random(num_rows) < self.share_once
        return np.where(comes_once, self.num_stories + np.arange(num_rows), popular)


class Burst(Scan):
    """Popular stories, and in the middle fifth of the prompts new ones alone, each twice in a
    row.
    """

    def __init__(self, num_stories: int = 60, prompt_tokens: PositiveTokens = 512) -> None:
        super().__init__(num_stories, share_once=0.0, prompt_tokens=prompt_tokens)

    def stories(self, num_rows: int, rng: np.random.Generator) -> Column:
        stories = super().stories(num_rows, rng)
        first, last = 2 * num_rows // 5, 3 * num_rows // 5
        stories[first:last] = self.num_stories + np.arange(last - first) // 2
        return stories
