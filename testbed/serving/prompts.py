"""From the body of a request to the token ids of its prompts."""

from testbed.serving.chat_template import ChatTemplate
from testbed.serving.protocol import ChatBody, CompletionBody, Sampling
from testbed.serving.tokenizer import Tokenizer


class Prompts:
    """Reads prompts by a tokenizer and a chat template; token ids are taken as they are."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self._template = template

    def ids(self, body: Sampling) -> list[tuple[int, ...]]:
        """The token ids of each prompt of the body."""
        if isinstance(body, ChatBody):
            text = self._template.text(body.plain_messages)
            return [self.tokenizer.ids(text, self._template.is_whole)]
        assert isinstance(body, CompletionBody)
        return [
            self.tokenizer.ids(prompt) if isinstance(prompt, str) else tuple(prompt)
            for prompt in body.prompts
        ]
