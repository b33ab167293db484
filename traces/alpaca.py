"""Alpaca instructions (JSON): one request for each instruction."""

from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.reader import FileTrace
from traces.sharegpt import json_list
from traces.tokens import count_tokens, require_tokens


class AlpacaJson(FileTrace):
    """Prompt = instruction, plus a newline and the input field where that is not empty; no template around it.

    Items whose prompt or output is blank are left out (the public file has some).
    """

    def __init__(self, path: str, tokenizer: str) -> None:
        super().__init__(path)
        self.tokenizer = str(tokenizer)

    def read(self) -> Rows:
        """One row for each item with texts, in file order."""
        texts = [(item, *self._texts(item, one)) for item, one in enumerate(json_list(self.path), start=1)]
        kept = [(item, prompt, output) for item, prompt, output in texts if prompt.strip() and output.strip()]
        if not kept:
            raise InputError(f"{self.path}: no item has both an instruction and an output")
        items, prompts, outputs = zip(*kept, strict=True)
        prompt_len, output_len = (count_tokens(self.tokenizer, column) for column in (prompts, outputs))
        require_tokens(self.path, items, prompt_len, output_len)
        return Rows(prompt_len, output_len)

    def _texts(self, item: int, one: Any) -> tuple[str, str]:
        try:
            instruction, output, extra = str(one["instruction"]), str(one["output"]), str(one.get("input") or "")
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self.path}, item {item}: needs 'instruction' and 'output'; is it Alpaca's?") from error
        return (f"{instruction}\n{extra}" if extra else instruction), output
