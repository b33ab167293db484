"""A fitted model of conversations: turn counts, first prompts, later messages and answers, by conditional quantiles."""

from dataclasses import dataclass

import numpy as np

from testbed.core.request import Column
from testbed.traces.length_model import QuantileTable, load_model

CONVERSATIONS = "conversations"
TABLES = ("num_turns", "first_prompt", "first_output", "message", "output")


@dataclass(frozen=True, slots=True)
class ConversationModel:
    """Quantiles of a conversation's turn count and, conditional on it, of its prompts, messages and answers in tokens.

    turn_edges divide the turn counts into groups: group g contains turn_edges[g] <= turns < turn_edges[g + 1].
    output_edges divide the previous answer's length likewise; `output` has a row for each (group, bin of the previous
    answer), so that long answers follow long answers.
    """

    turn_edges: Column
    output_edges: Column
    num_turns: QuantileTable
    first_prompt: QuantileTable
    first_output: QuantileTable
    message: QuantileTable
    output: QuantileTable

    @classmethod
    def load(cls, name: str) -> "ConversationModel":
        """The embedded model of this name."""
        data = load_model(name, CONVERSATIONS)
        turns, outputs = (np.array(data[key], dtype=np.int64) for key in ("turn_edges", "output_edges"))
        return cls(turns, outputs, *(QuantileTable.from_json(data[key]) for key in TABLES))

    def group(self, num_turns: Column) -> Column:
        """The group of conversations with that many turns."""
        return np.searchsorted(self.turn_edges, num_turns, side="right")

    def after(self, groups: Column, outputs: Column) -> Column:
        """The row of `output` for the answer that follows answers of these lengths."""
        return groups * (len(self.output_edges) + 1) + np.searchsorted(self.output_edges, outputs, side="right")

    def draw(self, num: int, rng: np.random.Generator) -> tuple[Column, Column, Column]:
        """num conversations: the first turn of each, and every turn's prompt (history and message) and answer."""
        num_turns = np.maximum(self.num_turns.lookup(rng.random(num)), 1)
        starts = np.append(0, np.cumsum(num_turns))
        prompts, outputs = np.empty((2, int(starts[-1])), dtype=np.int64)
        groups = self.group(num_turns)
        prompt = np.maximum(self.first_prompt.lookup(rng.random(num), groups), 1)
        output = np.maximum(self.first_output.lookup(rng.random(num), groups), 1)
        going = np.arange(num)
        for turn in range(int(num_turns.max(initial=0))):
            prompts[starts[going] + turn], outputs[starts[going] + turn] = prompt, output
            stay = num_turns[going] > turn + 1
            going, prompt, output = going[stay], prompt[stay], output[stay]
            prompt, output = self._next(groups[going], prompt, output, rng)
        return starts, prompts, outputs

    def _next(self, groups: Column, prompt: Column, output: Column, rng: np.random.Generator) -> tuple[Column, Column]:
        u, v = rng.random((2, len(groups)))
        answer = self.output.lookup(v, self.after(groups, output))
        return prompt + output + self.message.lookup(u, groups), np.maximum(answer, 1)
