"""A fitted length model: conditional quantiles that keep the joint shape of prompt and output lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Column
from testbed.traces.files import MAX_LEN, read_json

PAIRS = "prompt and output lengths"
HINT = "see traces/models/README.md"
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
    def from_json(cls, data: Any, where: str) -> "QuantileTable":
        """The table of a model file, checked; `where` names it in errors."""
        try:
            table = cls(*(np.array(data[key], dtype=np.float64) for key in ("probs", "rows")))
            table.check()
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: not a table of quantiles: {error} ({HINT})") from error
        return table

    def check(self) -> None:
        """Raise ValueError unless probabilities rise from 0 to 1 and no row decreases."""
        if self.rows.ndim != 2 or self.probs.shape != self.rows.shape[1:]:
            raise ValueError("each row must have one quantile for each probability")
        if self.probs[0] != 0 or self.probs[-1] != 1 or not (np.diff(self.probs) > 0).all():
            raise ValueError("the probabilities must rise from 0 to 1")
        if not (np.diff(self.rows, axis=1) >= 0).all() or not (self.rows >= 0).all():
            raise ValueError("quantiles must be at least 0 and never decrease")
        if not self.rows.max() <= MAX_LEN:
            raise ValueError(f"quantiles must be at most {MAX_LEN}")

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
    def from_json(cls, data: Mapping[str, Any], where: str) -> "LengthModel":
        """The model in a file of `kind` PAIRS; `where` names the file in errors."""
        require_kind(data, PAIRS, where)
        prompt, output = (QuantileTable.from_json(data.get(key), f"{where}, {key}") for key in ("prompt", "output"))
        edges = np.array(data.get("bin_edges", []), dtype=np.float64)
        rises = len(edges) == len(output.rows) + 1 and edges[0] == 0 and edges[-1] == 1 and (np.diff(edges) > 0).all()
        if not rises or not isinstance(data.get("max_len"), int):
            raise InputError(f"{where}: bin_edges (which rise from 0 to 1) or max_len does not fit its tables ({HINT})")
        return cls(data["max_len"], prompt, edges, output)

    def at(self, u: Floats, v: Floats) -> tuple[Column, Column]:
        """Prompt lengths at rank u, and output lengths at rank v among prompts of the same bin; ranks in [0, 1)."""
        prompts = np.clip(self.prompt.lookup(u), 1, self.max_len - 2)
        outputs = self.output.lookup(v, cell(self.bin_edges, u))
        return prompts, np.clip(outputs, 1, self.max_len - 1 - prompts)


def require_kind(data: Any, kind: str, where: str) -> None:
    """Raise InputError unless a model file is of this kind."""
    found = data.get("kind") if isinstance(data, Mapping) else None
    if found != kind:
        raise InputError(f"{where}: kind={found!r}: must be {kind!r} (name a model of that kind)")


def load_model(model: str) -> tuple[Mapping[str, Any], str]:
    """The JSON of an embedded model (by name) or of a model file (by a path that ends in .json), and its name."""
    model = str(model)  # a config may hold a number
    if model.endswith(".json"):
        return read_json(model), model
    folder = resources.files("testbed.traces.models")
    names = sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".json"))
    if model not in names:
        raise InputError(f"model={model!r}: is unknown (choose one of {', '.join(names)}, or a .json file's path)")
    with resources.as_file(folder / f"{model}.json") as path:
        return read_json(str(path)), model
