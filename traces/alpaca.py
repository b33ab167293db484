"""Alpaca instructions (JSON): one request for each instruction."""

from typing import Any

from testbed.traces.tokens import TextPairs


class AlpacaJson(TextPairs):
    """Prompt = instruction, plus a newline and the input field where that is not empty, without a template.

    Items whose prompt or output is blank are left out (the public file has some).
    """

    form = "needs 'instruction' and 'output'; is it Alpaca's?"
    wanted = "no item has both an instruction and an output"

    def texts(self, item: Any) -> tuple[str, str]:
        """The instruction with its input, and the output."""
        instruction, output, extra = str(item["instruction"]), str(item["output"]), str(item.get("input") or "")
        return (f"{instruction}\n{extra}" if extra else instruction), output
