"""A fitted length model: conditional quantiles that keep the joint shape of prompt and output lengths."""

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


def cell(edges: Floats, u: Floats) -> Column:
    """Index k of the cell [edges[k], edges[k+1]) that contains u, for each u in [0, 1)."""
    return np.searchsorted(edges[1:-1], u, side="right")


@dataclass(frozen=True, slots=True)
class QuantileTable:
    """One row of quantiles for each bin, all at the same probabilities; a marginal distribution has one bin."""

    probs: Floats
    rows: Floats

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "QuantileTable":
        """The table of a model file."""
        return cls(*(np.array(data[key], dtype=np.float64) for key in ("probs", "rows")))

    def lookup(self, u: Floats, bins: Column | int = 0) -> Column:
        """The length at probability u in its bin, for each u: linear between quantiles, rounded to a whole number."""
        k = cell(self.probs, u)
        low, high = self.rows[bins, k], self.rows[bins, k + 1]
        share = (u - self.probs[k]) / (self.probs[k + 1] - self.probs[k])
        found: Column = np.rint(low + share * (high - low)).astype(np.int64)
        return found


@dataclass(frozen=True, slots=True)
class LengthModel:
    """Prompt quantiles, and output quantiles for each bin of prompt ranks.

    bin_edges are ranks from 0 to 1: bin b contains the prompts between the quantiles bin_edges[b] and bin_edges[b + 1].
    The model was fitted to rows whose prompt and output sum to less than max_len tokens.
    """

    max_len: int
    prompt: QuantileTable
    bin_edges: Floats
    output: QuantileTable

    @classmethod
    def load(cls, name: str) -> "LengthModel":
        """The embedded model of this name."""
        data = load_model(name, PAIRS)
        prompt, output = (QuantileTable.from_json(data[key]) for key in ("prompt", "output"))
        return cls(data["max_len"], prompt, np.array(data["bin_edges"], dtype=np.float64), output)

    def at(self, u: Floats, v: Floats) -> tuple[Column, Column]:
        """Prompt lengths at rank u, and output lengths at rank v among prompts of the same bin; ranks in [0, 1)."""
        prompts = np.clip(self.prompt.lookup(u), 1, self.max_len - 2)
        outputs = self.output.lookup(v, cell(self.bin_edges, u))
        return prompts, np.clip(outputs, 1, self.max_len - 1 - prompts)


def load_model(name: str, kind: str) -> Any:
    """The JSON of an embedded model of this kind."""
    folder = resources.files("testbed.traces.models")
    names = sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".json"))
    data = json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) if name in names else {"kind": None}
    if data["kind"] != kind:
        raise InputError(f"model={name!r}: is not a model of {kind} (choose one of {', '.join(names)})")
    return data
