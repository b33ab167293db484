"""ShareGPT conversations (JSON): the first round of each, as the paper's artifact takes it."""

from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.files import read_json
from traces.reader import FileTrace
from traces.tokens import count_tokens, require_tokens

HUMAN = ("human", "user")


class ShareGptJson(FileTrace):
    """The first human message of each conversation and the answer right after it, counted by a tokenizer file.

    Conversations without such a pair of non-blank texts are left out. Counting takes about a minute for the whole
    data set; write_lengths of csv_lengths keeps the result.
    """

    def __init__(self, path: str, tokenizer: str) -> None:
        super().__init__(path)
        self.tokenizer = str(tokenizer)

    def read(self) -> Rows:
        """One row for each conversation with a first round, in file order."""
        conversations = json_list(self.path)
        rounds = [(item, *pair) for item, one in enumerate(conversations, start=1) if (pair := self._round(item, one))]
        if not rounds:
            raise InputError(f"{self.path}: no conversation has a human message and an answer; is it ShareGPT's JSON?")
        items, prompts, outputs = zip(*rounds, strict=True)
        prompt_len, output_len = (count_tokens(self.tokenizer, texts) for texts in (prompts, outputs))
        require_tokens(self.path, items, prompt_len, output_len)
        return Rows(prompt_len, output_len)

    def _round(self, item: int, conversation: Any) -> tuple[str, str] | None:
        try:
            messages = [(str(m["from"]), str(m["value"])) for m in conversation["conversations"]]
        except (KeyError, TypeError) as error:
            hint = "each item needs a list 'conversations' of {'from', 'value'}"
            raise InputError(f"{self.path}, item {item}: not a ShareGPT conversation; {hint}") from error
        first = next((place for place, (speaker, _) in enumerate(messages) if speaker in HUMAN), len(messages))
        texts = [text for _, text in messages[first : first + 2] if text.strip()]
        return (texts[0], texts[1]) if len(texts) == 2 else None


def json_list(path: str) -> list[Any]:
    """The items of a JSON file that holds one list."""
    content = read_json(path)
    if not isinstance(content, list) or not content:
        raise InputError(f"{path}: must be a JSON list with at least one item")
    return content
