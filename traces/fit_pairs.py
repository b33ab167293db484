"""Fit a length model to rows of a trace, and say how far it is from them."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from testbed.core.request import Column
from traces.length_model import LengthModel
from traces.quantiles import Floats, QuantileTable, grid

CHECK_GRID = (1024, 256)
PERCENTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Resolution:
    """How fine the tables are: bins of prompt ranks, and cells of the prompt's and of each bin's output quantiles."""

    bins: int
    bin_tail: tuple[float, ...] = ()
    prompt_cells: int = 128
    output_cells: int = 64


def fit_pairs(name: str, prompts: Column, outputs: Column, max_len: int, resolution: Resolution) -> LengthModel:
    """The length model of these rows, which must all be shorter than max_len tokens."""
    edges = grid(resolution.bins, resolution.bin_tail)
    cuts = np.rint(edges * len(prompts)).astype(np.int64)
    by_prompt = outputs[np.argsort(prompts, kind="stable")]
    groups = [by_prompt[start:end] for start, end in pairwise(cuts.tolist())]
    prompt = QuantileTable.of([prompts], grid(resolution.prompt_cells))
    return LengthModel(name, max_len, prompt, edges, QuantileTable.of(groups, grid(resolution.output_cells)))


def fit_errors(model: LengthModel, prompts: Column, outputs: Column) -> dict[str, dict[str, Any]]:
    """Each statistic of the rows beside the model's own, taken over an even grid of ranks (no random numbers)."""
    u, v = ((np.arange(cells) + 0.5) / cells for cells in CHECK_GRID)
    drawn = model.at(np.repeat(u, len(v)), np.tile(v, len(u)))
    file_side, model_side = statistics(prompts, outputs), statistics(*drawn)
    return {key: compare(file_side[key], model_side[key]) for key in file_side}


def statistics(prompts: Column, outputs: Column) -> dict[str, float]:
    """Means and percentiles in tokens, rank correlation, and context lengths summed over a request's decode steps."""
    found = {"spearman": spearman(prompts, outputs)}
    found["mean_context_steps"] = float(np.mean(outputs * (prompts + outputs / 2)))
    for name, values in (("prompt", prompts), ("output", outputs)):
        found[f"mean_{name}"] = float(values.mean())
        for p in PERCENTILES:
            found[f"p{p * 100:g}_{name}"] = float(np.sort(values)[int(p * len(values))])
    return found


def compare(file_side: float, model_side: float) -> dict[str, float]:
    """One statistic of file and model, and the model's error in percent."""
    error = 100 * (model_side / file_side - 1) if file_side else 0.0
    return {"file": round(file_side, 4), "model": round(model_side, 4), "error_percent": round(error, 2)}


def spearman(a: Column, b: Column) -> float:
    """Rank correlation; ties share their mean rank, and a constant column has none (0)."""
    if a.min() == a.max() or b.min() == b.max():
        return 0.0
    return float(np.corrcoef(_mean_ranks(a), _mean_ranks(b))[0, 1])


def _mean_ranks(values: Column) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(ranks[place], dtype=np.float64)
