"""Conversations with roles (JSON or JSON lines), as LMSYS-Chat-1M and WildChat have them: every turn, with content."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.chat import ChatCsv, Conversations
from testbed.traces.chat_histories import rows_with_prompt_ids
from testbed.traces.files import json_lines, open_text, read_json
from testbed.traces.tokens import count_tokens

ASKS, ANSWERS = ("user", "human", "system"), ("assistant", "gpt")


class ConversationsJson(ChatCsv):
    """One item per conversation: a list "conversation" of {"role", "content"}, roles user and assistant.

    The file is a JSON list or has one object per line; other fields are ignored. Every answer is a turn, whose prompt
    is all messages before it. A tokenizer file counts each text alone, so a turn has a few tokens less than with a chat
    template. Turns are interleaved and cut as in trace=chat_histories.
    """

    def __init__(
        self, path: str, tokenizer: str, new_probability: float = 0.2, max_prompt: int = 32768, max_output: int = 1016
    ) -> None:
        super().__init__(path, new_probability, max_prompt, max_output)
        self.tokenizer = str(tokenizer)

    @cached_property
    def talks(self) -> Conversations:
        """All conversations in file order; those without an answer are left out."""
        talks = [talk for item, content in self._items() if (talk := self._talk(item, content))]
        if not talks:
            raise InputError(f"{self.path}: no conversation has an answer (give a file with user and assistant turns)")
        counts = count_tokens(self.tokenizer, [text for talk in talks for _, text in talk])
        ends = np.cumsum([len(talk) for talk in talks])
        spoken = np.split(counts, ends[:-1])
        turns = [list(_turns(talk, tokens.tolist())) for talk, tokens in zip(talks, spoken, strict=True)]
        starts = np.cumsum([0, *map(len, turns)])
        flat = np.array([turn for talk in turns for turn in talk], np.int64)
        return Conversations(starts, np.maximum(flat[:, 0], 1), np.maximum(flat[:, 1], 1))

    def cut(self, talks: Conversations, turns: np.ndarray[Any, np.dtype[np.int64]]) -> Rows:
        """The rows of these turns, with the content of their prompts."""
        return rows_with_prompt_ids(talks, turns, self.max_prompt, self.max_output)

    def _items(self) -> Iterator[tuple[int, Any]]:
        """Items with their numbers, from a JSON list or from lines."""
        with open_text(self.path) as file:
            is_list = next((line for line in file if line.strip()), "").lstrip().startswith("[")
        return enumerate(read_json(self.path), start=1) if is_list else json_lines(self.path)

    def _talk(self, item: int, content: Any) -> list[tuple[bool, str]]:
        """(whether the model wrote it, text) of every message up to the last answer."""
        messages = content.get("conversation") if isinstance(content, Mapping) else None
        if not isinstance(messages, list):
            raise InputError(f"{self.path}, item {item}: needs a list 'conversation' of {{'role', 'content'}}")
        spoken = [self._message(item, message) for message in messages]
        last = max((place for place, (answers, _) in enumerate(spoken) if answers), default=0)
        return spoken[: last + 1] if last else []

    def _message(self, item: int, message: Any) -> tuple[bool, str]:
        role, text = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        if role not in (*ASKS, *ANSWERS) or not isinstance(text, str):
            known = ", ".join((*ASKS, *ANSWERS))
            raise InputError(f"{self.path}, item {item}: a message needs a role ({known}) and a text 'content'")
        return role in ANSWERS, text


def _turns(talk: list[tuple[bool, str]], tokens: list[int]) -> Iterator[tuple[int, int]]:
    """Prompt and output lengths of every answer that follows a message."""
    ends = np.cumsum([0, *tokens]).tolist()
    for (before, after), (answers, _) in zip(pairwise(ends), talk, strict=True):
        if answers and before:
            yield before, after - before
