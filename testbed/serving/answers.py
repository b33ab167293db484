"""The answers of both endpoints, whole and in pieces, as OpenAI's clients read them."""

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from testbed.serving.live import Served


def word(number: int) -> str:
    """The placeholder for an output token: its number in the answer."""
    return f" w{number}"


@dataclass
class Form:
    """How an endpoint writes an answer. kind: text_completion or chat.completion."""

    kind: str
    prefix: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def is_chat(self) -> bool:
        return self.kind == "chat.completion"

    def whole(self, prompts: list[Served], num_choices: int, max_tokens: list[int]) -> Any:
        """The whole answer."""
        choices = []
        for served, most in zip(prompts, max_tokens, strict=True):
            text = "".join(word(i + 1) for i in range(served.output_len))
            for choice in range(num_choices):
                index = served.place * num_choices + choice
                choices.append(self._choice(index, text, finish_reason(served, most)))
        return self._head(self.kind) | {"choices": choices, "usage": usage(prompts, num_choices)}

    def chunk(self, index: int, number: int, reason: str | None, has_usage: bool) -> str:
        """The event of token `number` of a sequence, counted from 1."""
        content: dict[str, Any]
        if self.is_chat:
            role = {"role": "assistant"} if number == 1 else {}
            content = {"delta": {**role, "content": word(number)}}
        else:
            content = {"text": word(number)}
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        body = self._head(self._chunk_kind) | {"choices": [choice]}
        return event(body | {"usage": None} if has_usage else body)

    def usage_chunk(self, prompts: list[Served], num_choices: int) -> str:
        """The event that ends a stream with include_usage."""
        body = {"choices": [], "usage": usage(prompts, num_choices)}
        return event(self._head(self._chunk_kind) | body)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else self.kind

    def _head(self, kind: str) -> dict[str, Any]:
        answer_id = f"{self.prefix}-{self.name}"
        return {"id": answer_id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, index: int, text: str, reason: str) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            content = {"message": {"role": "assistant", "content": text}}
        return {"index": index, **content, "logprobs": None, "finish_reason": reason}


def event(body: Any) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"


def finish_reason(served: Served, max_tokens: int) -> str:
    """Why a sequence ended."""
    return "length" if served.output_len == max_tokens else "stop"


def usage(prompts: list[Served], num_choices: int) -> dict[str, int]:
    """Tokens of the prompts, and of the sequences that are returned."""
    num_prompt = sum(len(served.prompt_ids) for served in prompts)
    num_output = sum(served.output_len for served in prompts) * num_choices
    total = num_prompt + num_output
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": total,
    }
