"""Multi-round chat (section 6.5): a request is one turn, and its prompt the conversation so far.

A prompt is cut to the end of the conversation.
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from random import Random

import numpy as np

from testbed.core.errors import InputError, check_least
from testbed.core.request import Column, Rows
from testbed.core.slots import ceil_div
from testbed.core.units import NonNegative, NumTokens, Share
from testbed.traces.files import (
    TOKENS,
    WHOLE_NUMBERS,
    numbered,
    read_numbers,
    read_table,
    require,
)
from testbed.traces.length_model import ConversationModel
from testbed.traces.reader import Trace, stream

TURN, HISTORY, OUTPUT = "turn", "history_plus_prompt_tokens", "output_tokens"
IGNORED = ("new_prompt_tokens", "chat_input_tokens", "chat_output_tokens")


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations as a table of turns; conversation c has the turns starts[c] to starts[c + 1].

    prompt_len: tokens of the history and the message. output_len: tokens of the answer.
    """

    starts: Column
    prompt_len: Column
    output_len: Column

    def __len__(self) -> int:
        return len(self.starts) - 1

    def first(self, num_turns: int) -> "Conversations":
        """The first num_turns turns; the last conversation may be cut."""
        starts = self.starts[self.starts < num_turns]
        return Conversations(
            np.append(starts, num_turns), self.prompt_len[:num_turns], self.output_len[:num_turns]
        )

    def take(self, order: Column) -> "Conversations":
        """The conversations of these numbers, in this order."""
        sizes = np.diff(self.starts)[order]
        starts = np.append(np.int64(0), np.cumsum(sizes))
        turns = np.arange(starts[-1]) + np.repeat(self.starts[order] - starts[:-1], sizes)
        return Conversations(starts, self.prompt_len[turns], self.output_len[turns])

    def answers_scaled(self, scale: float) -> "Conversations":
        """Every answer `scale` times as long (at least 1 token), also in later histories."""
        output_len = np.rint(scale * self.output_len).astype(np.int64).clip(1)
        before = np.cumsum(output_len - self.output_len) - (output_len - self.output_len)
        before -= np.repeat(before[self.starts[:-1]], np.diff(self.starts))
        return Conversations(self.starts, (self.prompt_len + before).clip(1), output_len)


@dataclass(kw_only=True, eq=False)
class Chat(Trace):
    """The artifact's chat workload.

    At each arrival a new conversation starts, with new_probability or if none is open; otherwise a
    random open conversation takes its next turn. Every turn is used once. Answers are answer_scale
    times as long as recorded, in histories too. Then prompts are cut to their last max_prompt
    tokens, and outputs to max_output. Turns do not wait for the previous answer; they depend on the
    seed only.
    """

    new_probability: Share = 0.5
    max_prompt: NumTokens = 1024
    max_output: NumTokens = 1016
    answer_scale: NonNegative = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.new_probability <= 1 or self.max_prompt < 1 or self.max_output < 1:
            raise InputError(
                key="chat",
                problem=(
                    f"new_probability is {self.new_probability}, max_prompt {self.max_prompt}, "
                    f"max_output {self.max_output}; the first must be above 0 and at most 1, the "
                    "others at least 1"
                ),
            )
        if not 0 < self.answer_scale < inf:
            raise InputError(
                key="chat",
                problem=(
                    f"answer_scale is {self.answer_scale}: no finite number above 0 (1: as "
                    "recorded)"
                ),
            )

    @abstractmethod
    def conversations(self, num_turns: int, rng: np.random.Generator) -> Conversations:
        """Conversations with num_turns turns in total, in order of start; the last may be cut."""

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """num_rows turns in order of arrival; a conversation is a session."""
        if num_rows is None:
            raise InputError(
                key="chat",
                problem="turns are drawn per arrival, without an end",
                remedy="give the number of rows",
            )
        check_least(0, num_rows=num_rows)
        self.check_limit(max_len)
        talks = self.conversations(num_rows, stream(seed, "conversations"))
        turns = interleave(talks.starts, self.new_probability, Random(seed))
        rows = self.cut(talks.answers_scaled(self.answer_scale), turns)
        return replace(rows, session=np.searchsorted(talks.starts, turns, "right") - 1)

    def check_limit(self, max_len: int | None) -> None:
        """Raise InputError unless all cut rows are shorter than max_len."""
        if max_len is not None and self.max_prompt + self.max_output >= max_len:
            raise InputError(
                key="chat",
                problem=(
                    f"max_prompt={self.max_prompt} + max_output={self.max_output}: is not below "
                    f"{max_len}"
                ),
                remedy="lower one",
            )

    def cut(self, talks: Conversations, turns: Column) -> Rows:
        prompts, outputs = talks.prompt_len[turns], talks.output_len[turns]
        return Rows(prompts.clip(max=self.max_prompt), outputs.clip(max=self.max_output))


@dataclass(kw_only=True, eq=False)
class ChatCsv(Chat):
    """Conversations of a CSV with a line per turn (conf/trace/chat_csv.yaml), repeated if few. The
    turns of one may lie among those of others, in their order.
    """

    path: str = field(kw_only=False)

    @cached_property
    def talks(self) -> Conversations:
        table = read_table(self.path, ["conv_id", HISTORY, OUTPUT], [TURN], IGNORED)
        talk = numbered(table["conv_id"])
        order = np.argsort(talk, kind="stable")
        starts = np.searchsorted(talk[order], np.arange(talk.max() + 2))
        if TURN in table:
            self._check_order(table[TURN], order, starts)
        prompts, outputs = (
            read_numbers(self.path, name, table[name], TOKENS)[order] for name in (HISTORY, OUTPUT)
        )
        return Conversations(starts, prompts, outputs)

    def _check_order(self, turns: list[str], order: Column, starts: Column) -> None:
        """Raise InputError for a turn that stands before an earlier one of its conversation."""
        numbers = read_numbers(self.path, TURN, turns, WHOLE_NUMBERS)
        in_order = np.append(True, np.diff(numbers[order]) > 0)
        in_order[starts[:-1]] = True
        by_line = np.empty(len(order), dtype=np.bool_)
        by_line[order] = in_order
        require(self.path, TURN, turns, by_line, "behind the turns before it")

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """num_rows turns in order of arrival; with None every turn, one conversation after the
        other.
        """
        if num_rows is not None:
            return super().rows(num_rows, seed, max_len)
        self.check_limit(max_len)
        every_turn = np.arange(len(self.talks.prompt_len))
        return self.cut(self.talks.answers_scaled(self.answer_scale), every_turn)

    def conversations(self, num_turns: int, rng: np.random.Generator) -> Conversations:
        """The first num_turns turns of the file, with their conversations shuffled."""
        times = ceil_div(num_turns, len(self.talks.prompt_len))
        first = self.talks.take(np.tile(np.arange(len(self.talks)), times)).first(num_turns)
        return first.take(rng.permutation(len(first)))


@dataclass(kw_only=True, eq=False)
class ChatFitted(Chat):
    """Conversations drawn from an embedded model."""

    model: str = field(default="chat", kw_only=False)

    @cached_property
    def fitted(self) -> ConversationModel:
        return ConversationModel.load(self.model)

    def conversations(self, num_turns: int, rng: np.random.Generator) -> Conversations:
        return Conversations(*self.fitted.draw(num_turns, rng)).first(num_turns)


def interleave(starts: Column, new_probability: float, random: Random) -> Column:
    """Every turn once, in order of arrival; conversations start in their order."""
    unstarted = list(pairwise(starts.tolist()))[::-1]  # (first turn, end), the next one last
    open_talks = list[tuple[int, int]]()  # (next turn, end)
    turns = []
    while unstarted or open_talks:
        if (random.random() < new_probability and unstarted) or not open_talks:
            place = len(open_talks)
            open_talks.append(unstarted.pop())
        else:
            place = random.randrange(len(open_talks))
        turn, end = open_talks[place]
        turns.append(turn)
        if turn + 1 < end:
            open_talks[place] = turn + 1, end
        else:  # the last one takes its place
            open_talks[place] = open_talks[-1]
            open_talks.pop()
    return np.array(turns, dtype=np.int64)
