"""ShareGPT conversations (JSON): the first round of each, as in the paper's artifact."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows
from testbed.traces.files import open_text, read_json
from testbed.traces.reader import FileTrace

HUMAN = ("human", "user")  # speakers of a human message


class ShareGptJson(FileTrace):
    """The first human message of each conversation and the answer after it.

    Tokens are counted by a Hugging Face tokenizer file, which takes about a minute for the whole
    data set; csv_lengths.write_lengths stores the result. Conversations without such a pair of
    non-blank texts are left out.
    """

    def __init__(self, path: str, tokenizer: str) -> None:
        super().__init__(path)
        self.tokenizer = str(tokenizer)

    def read(self) -> Rows:
        content = read_json(self.path)
        if not isinstance(content, list) or not content:
            raise InputError(key=self.path, problem="must be a JSON list with at least one item")
        rounds = [
            (number, *self._first_round(number, item))
            for number, item in enumerate(content, start=1)
        ]
        kept = [
            (number, prompt, output)
            for number, prompt, output in rounds
            if prompt.strip() and output.strip()
        ]
        if not kept:
            raise InputError(
                key=self.path,
                problem="no conversation has a human message and an answer",
                remedy="give ShareGPT's JSON",
            )
        numbers, prompts, outputs = zip(*kept, strict=True)
        prompt_len, output_len = (self._count_tokens(column) for column in (prompts, outputs))
        bad = np.flatnonzero((prompt_len < 1) | (output_len < 1))
        if len(bad):
            raise InputError(
                key=f"{self.path}, item {numbers[bad[0]]}",
                problem="a text has no tokens",
                remedy="remove the item",
            )
        return Rows(prompt_len, output_len)

    def _first_round(self, number: int, item: Any) -> tuple[str, str]:
        """The first human message and the message after it; empty texts if there is none."""
        try:
            messages = [(str(m["from"]), _text(m["value"])) for m in item["conversations"]]
        except (KeyError, TypeError) as error:
            raise InputError(
                key=f"{self.path}, item {number}",
                problem=(
                    "not a ShareGPT conversation; each item needs a list 'conversations' of "
                    "{'from', 'value'}"
                ),
            ) from error
        for place, (speaker, prompt) in enumerate(messages):
            if speaker in HUMAN:
                _, answer = (*messages, ("", ""))[place + 1]
                return prompt, answer
        return "", ""

    def _count_tokens(self, texts: Sequence[str]) -> Column:
        """The tokens of each text, including the tokenizer's special tokens (OPT: one BOS)."""
        tokenizer = _load(self.tokenizer)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return np.array(
            [len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))], dtype=np.int64
        )


def _text(value: Any) -> str:
    """The text of a message. Raises TypeError for null and for parts, which are not its words."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _load(path: str) -> Any:
    with open_text(path) as file:
        content = file.read()
    try:
        tokenizers = import_module("tokenizers")
    except ImportError as error:
        raise InputError(
            key=path,
            problem="counting tokens needs the package tokenizers",
            remedy="install it first",
        ) from error
    try:
        return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the Rust side raises bare Exception
        raise InputError(
            key=path,
            problem="not a tokenizer",
            remedy="give the model's tokenizer.json from Hugging Face",
        ) from error
