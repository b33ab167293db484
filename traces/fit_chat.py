"""Fit a conversation model to a CSV of chat turns, and say how far it is from them."""

from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows
from traces.chat import Chat, Conversations
from traces.conversation_model import ConversationModel
from traces.fit_pairs import compare, statistics
from traces.quantiles import QuantileTable, grid

TURN_EDGES = (3, 5, 9, 17)
OUTPUT_PARTS = 8
FINE, COARSE = grid(64), grid(32)
CHECK_TURNS, CHECK_SEEDS = 20_000, 5


class Drawn(Chat):
    """The chat workload of a model that is not in a file yet."""

    def __init__(self, model: ConversationModel) -> None:
        super().__init__()
        self.model = model

    def conversations(self, num_turns: int, rng: np.random.Generator) -> Conversations:
        """Conversations of the model, the last of them cut short."""
        return Conversations(*self.model.draw(num_turns, rng)).first(num_turns)


def fit_chat(talks: Conversations) -> ConversationModel:
    """The model of these conversations."""
    sizes = np.diff(talks.starts)
    first = np.zeros(len(talks.prompt_len), dtype=bool)
    first[talks.starts[:-1]] = True
    later = np.flatnonzero(~first)
    messages = talks.prompt_len[later] - talks.prompt_len[later - 1] - talks.output_len[later - 1]
    if len(messages) and messages.min() < 0:
        raise InputError(
            f"turn {later[messages.argmin()]}: its history is shorter than the turn before with its answer"
        )
    turn_edges = np.array(TURN_EDGES, dtype=np.int64)
    groups = np.repeat(np.searchsorted(turn_edges, sizes, side="right"), sizes)
    num_groups = len(TURN_EDGES) + 1
    previous, output_edges = talks.output_len[later - 1], _output_edges(talks.output_len)
    parts = groups[later] * OUTPUT_PARTS + np.searchsorted(output_edges, previous, side="right")
    return ConversationModel(
        turn_edges,
        output_edges,
        QuantileTable.of([sizes], grid(128)),
        _by_group(talks.prompt_len[first], groups[first], num_groups),
        _by_group(talks.output_len[first], groups[first], num_groups),
        _by_group(messages, groups[later], num_groups),
        QuantileTable.of([talks.output_len[later][parts == part] for part in range(num_groups * OUTPUT_PARTS)], COARSE),
    )


def _output_edges(outputs: Column) -> Column:
    ranks = np.arange(1, OUTPUT_PARTS) * len(outputs) // OUTPUT_PARTS
    edges: Column = np.sort(outputs)[ranks]
    return edges


def _by_group(values: Column, groups: Column, num_groups: int) -> QuantileTable:
    return QuantileTable.of([values[groups == group] for group in range(num_groups)], FINE)


def chat_errors(chat: Chat, model: ConversationModel) -> dict[str, dict[str, Any]]:
    """Statistics of the workload (turns interleaved and cut) from the file and from the model, over some seeds."""
    file_side, model_side = _workload(chat), _workload(Drawn(model))
    return {key: compare(file_side[key], model_side[key]) for key in file_side}


def _workload(chat: Chat) -> dict[str, float]:
    parts: list[Rows] = [chat.rows(CHECK_TURNS, seed) for seed in range(CHECK_SEEDS)]
    prompts, outputs = (np.concatenate([getattr(rows, key) for rows in parts]) for key in ("prompt_len", "output_len"))
    return statistics(prompts, outputs) | {"share_of_cut_prompts": float(np.mean(prompts == chat.max_prompt))}
