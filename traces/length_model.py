"""Fitted models of lengths and of conversations, by conditional quantiles that keep their joint
shape.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Column

PAIRS = "prompt and output lengths"
Floats = NDArray[np.float64]
CONVERSATIONS = "conversations"
TABLES = ("num_turns", "first_prompt", "first_output", "message", "output")


def cell(edges: Floats, u: Floats) -> Column:
    """Index k of the cell [edges[k], edges[k+1]) that contains u, for each u in [0, 1)."""
    return np.searchsorted(edges[1:-1], u, side="right")


@dataclass(frozen=True, slots=True)
class QuantileTable:
    """One row of quantiles for each bin, all at the same probabilities; a marginal distribution has
    one bin.
    """

    probs: Floats
    rows: Floats

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "QuantileTable":
        """The table of a model file."""
        return cls(*(np.array(table[key], dtype=np.float64) for key in ("probs", "rows")))

    def lookup(self, u: Floats, bins: Column | int = 0) -> Column:
        """The length at probability u in its bin, for each u: linear between quantiles, rounded to
        a whole number.
        """
        k = cell(self.probs, u)
        low, high = self.rows[bins, k], self.rows[bins, k + 1]
        share = (u - self.probs[k]) / (self.probs[k + 1] - self.probs[k])
        lengths: Column = np.rint(low + share * (high - low)).astype(np.int64)
        return lengths


@dataclass(frozen=True, slots=True)
class LengthModel:
    """Prompt quantiles, and output quantiles for each bin of prompt ranks.

    bin_edges are ranks from 0 to 1: bin b contains the prompts between the quantiles bin_edges[b]
    and bin_edges[b + 1]. The model was fitted to rows whose prompt and output sum to less than
    max_len tokens.
    """

    max_len: int
    prompt: QuantileTable
    bin_edges: Floats
    output: QuantileTable

    @classmethod
    def load(cls, name: str) -> "LengthModel":
        """The embedded model of this name."""
        model = load_model(name, PAIRS)
        prompt, output = (QuantileTable.from_json(model[key]) for key in ("prompt", "output"))
        return cls(model["max_len"], prompt, np.array(model["bin_edges"], dtype=np.float64), output)

    def at(self, u: Floats, v: Floats) -> tuple[Column, Column]:
        """Prompt lengths at rank u, and output lengths at rank v among prompts of the same bin;
        ranks in [0, 1).
        """
        prompts, outputs = self.prompt.lookup(u), self.output.lookup(v, cell(self.bin_edges, u))
        return prompts, outputs.clip(max=self.max_len - 1 - prompts)


def load_model(name: str, kind: str) -> Any:
    """The JSON of an embedded model of this kind."""
    folder = resources.files("testbed.traces.models")
    names = sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".json"))
    model = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        if name in names
        else {"kind": None}
    )
    if model["kind"] != kind:
        raise InputError(
            key="model",
            value=repr(name),
            problem=f"is not a model of {kind}",
            remedy=f"choose one of {', '.join(names)}",
        )
    return model


@dataclass(frozen=True, slots=True)
class ConversationModel:
    """Quantiles of a conversation's turn count and, conditional on it, of its prompts, messages and
    answers in tokens.

    turn_edges divide the turn counts into groups: group g contains turn_edges[g] <= turns <
    turn_edges[g + 1]. output_edges divide the previous answer's length likewise; `output` has a row
    for each (group, bin of the previous answer), so that long answers follow long answers.
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
        model = load_model(name, CONVERSATIONS)
        turns, outputs = (
            np.array(model[key], dtype=np.int64) for key in ("turn_edges", "output_edges")
        )
        return cls(turns, outputs, *(QuantileTable.from_json(model[key]) for key in TABLES))

    def group(self, num_turns: Column) -> Column:
        """The group of conversations with that many turns."""
        return np.searchsorted(self.turn_edges, num_turns, side="right")

    def after(self, groups: Column, outputs: Column) -> Column:
        """The row of `output` for the answer that follows answers of these lengths."""
        return groups * (len(self.output_edges) + 1) + np.searchsorted(
            self.output_edges, outputs, side="right"
        )

    def draw(self, num: int, rng: np.random.Generator) -> tuple[Column, Column, Column]:
        """num conversations: the first turn of each, and every turn's prompt (history and message)
        and answer.
        """
        num_turns = self.num_turns.lookup(rng.random(num))
        starts = np.append(0, np.cumsum(num_turns))
        prompts, outputs = np.empty((2, int(starts[-1])), dtype=np.int64)
        groups = self.group(num_turns)
        prompt = self.first_prompt.lookup(rng.random(num), groups)
        output = self.first_output.lookup(rng.random(num), groups)
        going, turn = np.arange(num), 0
        while len(going):
            prompts[starts[going] + turn], outputs[starts[going] + turn] = prompt, output
            turn += 1
            stay = num_turns[going] > turn
            going, prompt, output = going[stay], prompt[stay], output[stay]
            u, v = rng.random((2, len(going)))
            prompt = prompt + output + self.message.lookup(u, groups[going])
            output = self.output.lookup(v, self.after(groups[going], output))
        return starts, prompts, outputs
