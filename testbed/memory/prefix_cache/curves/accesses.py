"""The accesses of a trace to a prefix cache, one prompt at a time, as runs of blocks.

Blocks of a prompt that the same earlier prompt used last are one run. They are adjacent in the
least-recently-used stack, whose top is the block used last: every use of a block is also a use of
the blocks before it, and the beginning of a prompt lies above its end. Only a prefix of what an
earlier prompt left there can be used again, so its run begins at the top of what is left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.prefix_cache.replay import Prompt


class Run(NamedTuple):
    """num_blocks adjacent blocks of a prompt, which the prompt number `since` used last."""

    since: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Access:
    """One prompt's use of the cache.

    num_blocks: blocks that it occupies, a partial last one included. num_full: those whose content
    others may find. runs: its leading blocks that earlier prompts have used, from the first block
    on; what follows is new.
    """

    num_blocks: int
    num_full: int
    runs: tuple[Run, ...]

    @property
    def num_readable(self) -> int:
        """Blocks that it may find: not the one with its last token, which is always computed."""
        return self.num_blocks - 1


def accesses_of(prompts: Iterable[Prompt]) -> list[Access]:
    """The accesses of prompts that come one by one in this order."""
    blocks = _Blocks()
    return [
        Access(prompt.num_blocks, len(prompt.contents), blocks.use(time, prompt.contents))
        for time, prompt in enumerate(prompts)
    ]


class _Blocks:
    """Every block of a trace: a number by its predecessor and content, and its last use."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Content], int] = {}
        self._last_use: list[int] = []

    def use(self, time: int, contents: Sequence[Content]) -> tuple[Run, ...]:
        """The prompt number `time` uses these blocks; returns its runs."""
        numbers, last_use, number = self._numbers, self._last_use, -1
        before = []
        for content in contents:
            place = number, content
            known_number = numbers.get(place)
            if known_number is None:
                number = numbers[place] = len(last_use)
                last_use.append(time)
            else:
                number = known_number
                before.append(last_use[number])
                last_use[number] = time
        return tuple(Run(since, sum(1 for _ in blocks)) for since, blocks in groupby(before))


def num_different(prompts: Sequence[Prompt]) -> int:
    """Full blocks that no earlier prompt has used: the working set of the trace."""
    return sum(
        access.num_full - sum(run.num_blocks for run in access.runs)
        for access in accesses_of(prompts)
    )
