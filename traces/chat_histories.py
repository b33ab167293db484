"""Multi-round chat with content: every prompt is the whole conversation so far, for prefix caches."""

import numpy as np

from testbed.core.request import Column, Rows
from testbed.traces.chat import ChatFitted, Conversations

TOKENS_PER_ID = 16


class ChatHistories(ChatFitted):
    """Turns of the fitted conversations in the order of the chat workload, uncut up to max_prompt tokens.

    One id identifies 16 tokens of one conversation, so a later turn's prompt begins with that of an earlier one.
    """

    def __init__(
        self, model: str = "chat", new_probability: float = 0.2, max_prompt: int = 32768, max_output: int = 1016
    ) -> None:
        super().__init__(model, new_probability, max_prompt, max_output)

    def cut(self, talks: Conversations, turns: Column) -> Rows:
        """The rows of these turns, with the content of their prompts."""
        return rows_with_prompt_ids(talks, turns, self.max_prompt, self.max_output)


def rows_with_prompt_ids(talks: Conversations, turns: Column, max_prompt: int, max_output: int) -> Rows:
    """The rows of these turns, cut; a turn's prompt begins with those of the turns before it."""
    prompts = np.minimum(talks.prompt_len[turns], max_prompt)
    outputs = np.minimum(talks.output_len[turns], max_output)
    talk = np.searchsorted(talks.starts, turns, side="right") - 1
    num_slots = max_prompt // TOKENS_PER_ID + 1
    num_ids = -(-prompts // TOKENS_PER_ID)
    ids = [tuple(range(t * num_slots, t * num_slots + n)) for t, n in zip(talk.tolist(), num_ids.tolist(), strict=True)]
    return Rows(prompts, outputs, prompt_ids=ids, tokens_per_id=TOKENS_PER_ID)
