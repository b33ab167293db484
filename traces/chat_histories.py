"""Multi-round chat for prefix caches: a prompt is the whole conversation so far, with content."""

from dataclasses import dataclass

import numpy as np

from testbed.core.request import Column, Rows
from testbed.core.units import NumTokens, Share
from testbed.traces.chat import ChatFitted, Conversations

TOKENS_PER_ID = 16


@dataclass(kw_only=True, eq=False)
class ChatHistories(ChatFitted):
    """Turns of the fitted conversations; an id identifies 16 tokens of one conversation, whose
    prompts contain the answers before them.
    """

    new_probability: Share = 0.2
    max_prompt: NumTokens = 32768

    def cut(self, talks: Conversations, turns: Column) -> Rows:
        rows = super().cut(talks, turns)
        talk = np.searchsorted(talks.starts, turns, side="right") - 1
        longest = self.max_prompt + self.max_output
        first_ids = talk * (longest // TOKENS_PER_ID + 1)
        ends = first_ids - (-rows.prompt_len // TOKENS_PER_ID)
        ids = [
            tuple(range(first, end))
            for first, end in zip(first_ids.tolist(), ends.tolist(), strict=True)
        ]
        is_whole = rows.prompt_len < self.max_prompt  # no prompt contains what follows a cut one
        return Rows(
            rows.prompt_len,
            rows.output_len,
            prompt_ids=ids,
            tokens_per_id=TOKENS_PER_ID,
            answer_id=np.where(is_whole, first_ids, -1),
        )
