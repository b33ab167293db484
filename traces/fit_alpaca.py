"""Alpaca rows for the fit: the pairs known in OPT tokens, their outputs mapped by rank onto a larger sample."""

import numpy as np

from testbed.core.request import Column, Rows
from traces.files import lengths, read_table

CURVE_POINTS = 32
PAIR_COLUMNS = ("input_tokens_opt", "output_tokens_opt", "output_tokens_llama")
OUTPUT_COLUMN = "output_tokens_llama"


def alpaca_rows(pairs_path: str, outputs_path: str) -> Rows:
    """The pairs' prompts, each with the output length that has its own output's rank in the larger sample."""
    table = read_table(pairs_path, PAIR_COLUMNS)
    prompts, outputs, llama = (lengths(pairs_path, name, table[name]) for name in PAIR_COLUMNS)
    many = lengths(outputs_path, OUTPUT_COLUMN, read_table(outputs_path, [OUTPUT_COLUMN])[OUTPUT_COLUMN])
    return Rows(prompts, at_same_rank(outputs, convert(many, llama, outputs)))


def convert(values: Column, known_from: Column, known_to: Column) -> Column:
    """Lengths in another tokenizer's tokens, by the mean curve of the texts whose length is known in both."""
    groups = np.array_split(np.argsort(known_from, kind="stable"), CURVE_POINTS)
    x, y = (np.array([known[group].mean() for group in groups]) for known in (known_from, known_to))
    nearest = np.clip(values, x[0], x[-1])
    scaled = np.interp(nearest, x, y) * values / nearest
    converted: Column = np.maximum(np.rint(scaled), 1).astype(np.int64)
    return converted


def at_same_rank(values: Column, larger: Column) -> Column:
    """Each value replaced by the one of `larger` that stands at the same rank; ties keep their order."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    places = (ranks + 0.5) / len(values) * len(larger)
    return np.sort(larger)[np.floor(places).astype(np.int64)]
