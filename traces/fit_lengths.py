"""Fit a length model to rows of a trace and compute its errors. models/README.md lists the models fitted with it."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from testbed.core.request import Column, Rows
from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.length_model import PAIRS, Floats, LengthModel, QuantileTable

TAIL = (0.99, 0.995, 0.998)  # where lengths are far apart
CHECK_GRID = (1024, 256)
PERCENTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Resolution:
    """Table sizes: bins of prompt ranks, cells of prompt quantiles, cells of each bin's output quantiles."""

    bins: int
    bin_tail: tuple[float, ...] = ()
    prompt_cells: int = 128
    output_cells: int = 64


def model_text(path: str, name: str, source: str) -> str:
    """The model file of a CSV of lengths: deterministic text with quantiles of all rows, and without any row.

    There are as many bins as about 150 rows per bin allow.
    """
    rows = CsvLengths(path).rows(None, 0)
    max_len = int((rows.prompt_len + rows.output_len).max()) + 1
    model = fit(rows, max_len, Resolution(max(1, min(32, len(rows) // 150))))
    facts = {"kind": PAIRS, "name": name, "max_len": max_len, "source": source}
    facts |= {"sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(), "num_rows": len(rows)}
    text = json.dumps({**facts, "fit": errors(model, rows), **tables(model)}, indent=1)
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: re.sub(r"\s+", "", found.group()), text)
    return re.sub(r"\{[^{}\[\]]*\}", lambda found: re.sub(r"\s*\n\s*", " ", found.group()), text) + "\n"


def fit(rows: Rows, max_len: int, resolution: Resolution) -> LengthModel:
    """The length model of these rows, which must all be shorter than max_len tokens."""
    edges = grid(resolution.bins, resolution.bin_tail)
    cuts = np.rint(edges * len(rows)).astype(np.int64)
    by_prompt = rows.output_len[np.argsort(rows.prompt_len, kind="stable")]
    groups = [by_prompt[start:end] for start, end in pairwise(cuts.tolist())]
    prompt = quantiles([rows.prompt_len], grid(resolution.prompt_cells))
    return LengthModel(max_len, prompt, edges, quantiles(groups, grid(resolution.output_cells)))


def grid(num_cells: int, tail: Sequence[float] = TAIL) -> Floats:
    """Probabilities 0, 1/n .. 1 and a finer upper tail."""
    return np.array(sorted({*(i / num_cells for i in range(num_cells + 1)), *tail}))


def quantiles(groups: Sequence[Column], probs: Floats) -> QuantileTable:
    """Order statistics of each group of values (inverse of the empirical distribution); all occur in the group."""
    places = [np.floor(probs * len(values)).astype(np.int64).clip(max=len(values) - 1) for values in groups]
    rows = [np.sort(values)[at] for values, at in zip(groups, places, strict=True)]
    return QuantileTable(probs, np.array(rows, dtype=np.float64))


def tables(model: LengthModel) -> dict[str, Any]:
    """The tables of a model file that LengthModel.from_json reads."""
    prompt, output = (
        {"probs": _rounded(table.probs), "rows": table.rows.astype(np.int64).tolist()}
        for table in (model.prompt, model.output)
    )
    return {"prompt": prompt, "bin_edges": _rounded(model.bin_edges), "output": output}


def _rounded(probs: Floats) -> list[float]:
    return [round(p, 6) for p in probs.tolist()]


def errors(model: LengthModel, rows: Rows) -> dict[str, dict[str, float]]:
    """Each statistic of the rows and of the model, which is taken over an even grid of ranks (no random numbers)."""
    u, v = ((np.arange(cells) + 0.5) / cells for cells in CHECK_GRID)
    drawn = statistics(*model.at(np.repeat(u, len(v)), np.tile(v, len(u))))
    found = {}
    for key, value in statistics(rows.prompt_len, rows.output_len).items():
        error = 100 * (drawn[key] / value - 1) if value else 0.0
        found[key] = {"file": round(value, 4), "model": round(drawn[key], 4), "error_percent": round(error, 2)}
    return found


def statistics(prompts: Column, outputs: Column) -> dict[str, float]:
    """Means and percentiles in tokens, rank correlation, and context lengths summed over a request's decode steps."""
    found = {"spearman": spearman(prompts, outputs)}
    found["mean_context_steps"] = float(np.mean(outputs * (prompts + outputs / 2)))
    for name, values in (("prompt", prompts), ("output", outputs)):
        found[f"mean_{name}"] = float(values.mean())
        for p in PERCENTILES:
            found[f"p{p * 100:g}_{name}"] = float(np.sort(values)[int(p * len(values))])
    return found


def spearman(a: Column, b: Column) -> float:
    """Rank correlation; ties share their mean rank, and a constant column has none (0)."""
    if a.min() == a.max() or b.min() == b.max():
        return 0.0
    return float(np.corrcoef(_mean_ranks(a), _mean_ranks(b))[0, 1])


def _mean_ranks(values: Column) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)
