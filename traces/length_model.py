"""A fitted length model: conditional quantiles that keep the joint shape of prompt and output lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column
from traces.files import read_json
from traces.quantiles import Floats, QuantileTable, cell

PAIRS = "prompt and output lengths"


@dataclass(frozen=True, slots=True)
class LengthModel:
    """Prompt quantiles, and output quantiles for each bin of prompt ranks.

    bin_edges are ranks from 0 to 1: bin b holds the prompts between the quantiles bin_edges[b] and bin_edges[b + 1].
    Prompt and output are together shorter than max_len tokens, the filter the model was fitted under.
    """

    name: str
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
        if len(edges) != len(output.rows) + 1 or not isinstance(data.get("max_len"), int):
            raise InputError(f"{where}: bin_edges or max_len does not fit its tables; make it again with traces.fit")
        return cls(str(data.get("name", where)), data["max_len"], prompt, edges, output)

    def to_json(self) -> dict[str, Any]:
        """The part of the file that from_json reads."""
        edges = [round(edge, 6) for edge in self.bin_edges.tolist()]
        tables = {"prompt": self.prompt.to_json(), "bin_edges": edges, "output": self.output.to_json()}
        return {"kind": PAIRS, "name": self.name, "max_len": self.max_len, **tables}

    def at(self, u: Floats, v: Floats) -> tuple[Column, Column]:
        """Prompt and output lengths at prompt rank u and, among prompts like it, output rank v; both in [0, 1)."""
        prompts = np.clip(self.prompt.lookup(u), 1, self.max_len - 2)
        outputs = self.output.lookup(v, cell(self.bin_edges, u))
        return prompts, np.clip(outputs, 1, self.max_len - 1 - prompts)


def require_kind(data: Any, kind: str, where: str) -> None:
    """A model file must say that it is of this kind."""
    found = data.get("kind") if isinstance(data, Mapping) else None
    if found != kind:
        raise InputError(f"{where}: its kind is {found!r}, not {kind!r}; name a model of that kind, or fit one")


def load_model(model: str) -> tuple[Mapping[str, Any], str]:
    """The JSON of an embedded model (by name) or of a model file (by a path that ends in .json), and its name."""
    if model.endswith(".json"):
        return read_json(model), model
    folder = resources.files("traces.models")
    names = sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".json"))
    if model not in names:
        raise InputError(f"no length model {model!r}; embedded are {', '.join(names)}, or give a .json file's path")
    with resources.as_file(folder / f"{model}.json") as path:
        return read_json(str(path)), model
