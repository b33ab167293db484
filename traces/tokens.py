"""Token counts of texts, by any Hugging Face tokenizer file (needs the `tokenizers` extra)."""

from abc import abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows
from testbed.traces.files import open_text, read_json
from testbed.traces.reader import FileTrace


def count_tokens(tokenizer_path: str, texts: Sequence[str]) -> Column:
    """Tokens of each text, with the special tokens that the tokenizer file adds (OPT: one BOS)."""
    tokenizer = _load(tokenizer_path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return np.array([len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))], dtype=np.int64)


def _load(path: str) -> Any:
    with open_text(path) as file:
        content = file.read()
    try:
        tokenizers = import_module("tokenizers")
    except ImportError as error:
        raise InputError(f"{path}: counting tokens needs the package tokenizers (install it first)") from error
    try:
        return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the Rust side raises bare Exception
        raise InputError(f"{path}: not a tokenizer (give the model's tokenizer.json from Hugging Face)") from error


class TextPairs(FileTrace):
    """A JSON list of items with a prompt and an output as texts, counted by a tokenizer file.

    `form` is the message for a malformed item, `wanted` the message where no item has both texts.
    """

    form: str
    wanted: str

    def __init__(self, path: str, tokenizer: str) -> None:
        super().__init__(path)
        self.tokenizer = str(tokenizer)

    @abstractmethod
    def texts(self, item: Any) -> tuple[str, str]:
        """Prompt and output of one item; items with a blank text are left out."""

    def read(self) -> Rows:
        """One row for each item with texts, in file order."""
        content = read_json(self.path)
        if not isinstance(content, list) or not content:
            raise InputError(f"{self.path}: must be a JSON list with at least one item")
        found = [(number, *self._texts(number, item)) for number, item in enumerate(content, start=1)]
        kept = [(number, prompt, output) for number, prompt, output in found if prompt.strip() and output.strip()]
        if not kept:
            raise InputError(f"{self.path}: {self.wanted}")
        numbers, prompts, outputs = zip(*kept, strict=True)
        prompt_len, output_len = (count_tokens(self.tokenizer, column) for column in (prompts, outputs))
        bad = np.flatnonzero(np.minimum(prompt_len, output_len) < 1)
        if len(bad):
            raise InputError(f"{self.path}, item {numbers[bad[0]]}: a text has no tokens (remove the item)")
        return Rows(prompt_len, output_len)

    def _texts(self, number: int, item: Any) -> tuple[str, str]:
        try:
            return self.texts(item)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self.path}, item {number}: {self.form}") from error
