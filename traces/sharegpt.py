"""ShareGPT conversations (JSON): the first round of each, as in the paper's artifact."""

from typing import Any

from testbed.traces.tokens import TextPairs

HUMAN = ("human", "user")


class ShareGptJson(TextPairs):
    """The first human message of each conversation and the answer after it, counted by a tokenizer file.

    Conversations without such a pair of non-blank texts are left out. Counting takes about a minute for the whole
    data set; csv_lengths.write_lengths stores the result.
    """

    form = "not a ShareGPT conversation; each item needs a list 'conversations' of {'from', 'value'}"
    wanted = "no conversation has a human message and an answer; is it ShareGPT's JSON?"

    def texts(self, item: Any) -> tuple[str, str]:
        """The first round."""
        messages = [(str(m["from"]), str(m["value"])) for m in item["conversations"]]
        first = next((place for place, (sampler, _) in enumerate(messages) if sampler in HUMAN), len(messages))
        prompt, output, *_ = [*(text for _, text in messages[first : first + 2]), "", ""]
        return prompt, output
