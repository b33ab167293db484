"""The answers of both endpoints, whole and in pieces, as OpenAI's clients read them."""

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testbed.serving.served_prompt import Served


class Piece(NamedTuple):
    """The text that tokens add to a sequence: from the token of this number, from 1, of this
    choice, from 0. reason: why the sequence ends with them.
    """

    choice: int
    number: int
    text: str
    reason: str | None

    def with_next(self, piece: "Piece") -> "Piece":
        """The piece, and the next one of the same sequence."""
        return piece._replace(number=self.number, text=self.text + piece.text)


@dataclass
class Form:
    """The form of an endpoint's answers. kind: text_completion or chat.completion."""

    kind: str
    prefix: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def is_chat(self) -> bool:
        return self.kind == "chat.completion"

    def whole(self, prompts: list[Served]) -> Any:
        """The whole answer."""
        texts = [choice for served in prompts for choice in served.choices]
        choices = [
            self._choice(index, choice.text, choice.reason) for index, choice in enumerate(texts)
        ]
        return self._head(self.kind) | {"choices": choices, "usage": usage(prompts)}

    def chunk(self, piece: Piece, usage_so_far: dict[str, Any]) -> str:
        """The event of a piece."""
        content: dict[str, Any]
        if self.is_chat:
            role = {"role": "assistant"} if piece.number == 1 else {}
            content = {"delta": {**role, "content": piece.text}}
        else:
            content = {"text": piece.text}
        choice = {"index": piece.choice, **content, "logprobs": None, "finish_reason": piece.reason}
        return event(self._head(self._chunk_kind) | {"choices": [choice]} | usage_so_far)

    def usage_chunk(self, prompts: list[Served]) -> str:
        """The event that ends a stream with include_usage."""
        body = {"choices": [], "usage": usage(prompts)}
        return event(self._head(self._chunk_kind) | body)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else self.kind

    def _head(self, kind: str) -> dict[str, Any]:
        answer_id = f"{self.prefix}-{self.name}"
        return {"id": answer_id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            content = {"message": {"role": "assistant", "content": text}}
        return {"index": index, **content, "logprobs": None, "finish_reason": reason}


ENCODER = json.JSONEncoder(separators=(",", ":"))  # json.dumps would make one for each event


def event(body: Any) -> str:
    """A server-sent event."""
    return f"data: {ENCODER.encode(body)}\n\n"


def usage(prompts: list[Served]) -> dict[str, int]:
    """Tokens of the prompts, and of the sequences that are returned."""
    num_prompt = sum(served.request.prompt_len for served in prompts)
    num_output = sum(choice.num_tokens for served in prompts for choice in served.choices)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
    }
