"""AIConfigurator's tables as points in microseconds: matrix products, attention, all-reduces.

A row that is there twice counts once, by its median. Each reader adds to `notes` how far outside
its grid it read.
"""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from testbed.core.errors import InputError

DTYPE, BYTES = "bfloat16", 2
US_PER_MS = 1000.0
NUMBERS = {
    "m",
    "n",
    "k",
    "batch_size",
    "isl",
    "step",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "beam_width",
    "num_gpus",
    "message_size",
    "latency",
    "window_size",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
    "seq_len",
    "d_model",
    "d_conv",
    "num_k_heads",
    "head_k_dim",
    "num_v_heads",
    "head_v_dim",
}
Points = list[list[Any]]
Product = tuple[int, int, float]  # n, k, and how many of it there are
# Neighbours in a grid, how far between them (0 below the grid, 1 beyond it), and how many times the
# last of the grid.
Place = tuple[tuple[int, int], float, float]


def checked_rows(table: Any, path: Path) -> Any:
    """The table itself, if every number that is read of it is one, at least 0; a latency must be
    above 0.
    """
    for name in NUMBERS.intersection(table.columns):
        wrong = (
            ~np.isfinite(table[name])
            | (table[name] < 0)
            | ((table[name] == 0) & (name == "latency"))
        )
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                key=f"{path}, row {row}, column {name}",
                problem=f"{table[name].iloc[row]} is no sound number",
                remedy="remove the row",
            )
    return table


def _us(rows: Any, by: str | list[str]) -> Any:
    return rows.groupby(by)["latency"].median() * US_PER_MS


def points_by(rows: Any, *by: str) -> Points:
    """(*these columns, microseconds), rounded as in a profile."""
    return (
        _us(rows, list(by))
        .map(lambda us: round(us, 3))
        .reset_index()
        .to_numpy(dtype=object)
        .tolist()
    )


def read_parquet(folder: Path, pattern: str) -> Any:
    """A table of the folder, of the newest version that is there. Raises InputError if pyarrow
    is not installed.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InputError(
            key="AIConfigurator's tables are parquet",
            problem="pip install 'kvcache-testbed[parquet]'",
        ) from error
    import pandas as pd

    path = sorted(folder.glob(pattern))[-1]
    return checked_rows(pd.read_parquet(path), path)


class Gemms:
    """Times by shape: linear between measured n and k, in proportion beyond the last, below the
    first the first's.
    """

    def __init__(self, table: Any, dtype: str = DTYPE) -> None:
        self._us = {
            key: float(us)
            for key, us in _us(table[table["gemm_dtype"] == dtype], ["m", "n", "k"]).items()
        }
        if not self._us:
            raise InputError(
                key="matrix products",
                problem=f"no rows of {dtype}",
                remedy="choose other types of the weights",
            )
        self._m, self._n, self._k = (sorted({key[i] for key in self._us}) for i in range(3))

    def summed(self, shapes: Mapping[str, Product], notes: list[str]) -> Points:
        """(m, microseconds) of these products one after the other, of some a share."""
        places = [
            (
                share,
                _place(self._n, n, f"{name} has n", notes),
                _place(self._k, k, f"{name} has k", notes),
            )
            for name, (n, k, share) in shapes.items()
        ]
        return [
            [int(m), round(sum(share * self._at(m, n, k) for share, n, k in places), 3)]
            for m in self._m
        ]

    def _at(self, m: int, n: Place, k: Place) -> float:
        (ns, at_n, more_n), (ks, at_k, more_k) = n, k
        missing = next((key for key in product((m,), ns, ks) if key not in self._us), None)
        if missing is not None:
            raise InputError(
                key="matrix products",
                problem="no time at m, n, k of {}, {}, {}".format(*missing),
                remedy="add its row",
            )
        low, high = (_line(self._us[m, near, ks[0]], self._us[m, near, ks[1]], at_k) for near in ns)
        return _line(low, high, at_n) * more_n * more_k


def _place(grid: list[int], x: int, what: str, notes: list[str]) -> Place:
    i = min(max(1, bisect_left(grid, x)), len(grid) - 1)
    low, high = grid[i - 1], grid[i]
    share = min(max((x - low) / (high - low), 0.0), 1.0)
    if not grid[0] <= x <= grid[-1]:
        notes.append(f"outside the grid: {what} {x:,}, measured were {grid[0]:,} to {grid[-1]:,}")
    elif 0 < share < 1 and high > 2 * low:
        notes.append(
            f"in a gap of the grid: {what} {x:,}, measured were {low:,} and {high:,}; linear "
            "between"
        )
    return (low, high), share, max(x / grid[-1], 1)


def _line(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


def decode_points(rows: Any, heads: int, kv_heads: int, notes: list[str]) -> Points:
    """(num_seqs, total_context, microseconds) of one layer's decode. The kernel's time goes by
    batch x heads of K and V at a given number of queries for each of them, so a batch of a model
    with more such heads than were measured is read as a larger batch of one with fewer. A row's
    length is step + 1.
    """
    group, queries = _queries(rows, heads // kv_heads, notes)
    counts = group["num_key_value_heads"].unique().tolist()
    most = max((count for count in counts if count <= kv_heads), default=min(counts))
    chosen = group[group["num_key_value_heads"] == most]
    if most != kv_heads:
        notes.append(
            f"decode attention: {kv_heads} heads of K and V are read as {most} with "
            f"{kv_heads / most:g} x the batch ({queries} queries each)"
        )
    points: Points = []
    for step, curve in chosen.groupby("step"):
        measured = [
            (int(batch) * most / kv_heads, float(us))
            for batch, us in _us(curve, "batch_size").items()
        ]
        points += [[n, n * (int(step) + 1), round(us, 3)] for n, us in _at_whole_counts(measured)]
    longest, widest = int(chosen["step"].max()) + 1, max(point[0] for point in points)
    reach = f"up to {widest} sequences or {longest:,} tokens each, not both"
    notes.append(f"decode attention: {reach}; beyond them the last line continues")
    return points


def prefill_points(rows: Any, heads: int, kv_heads: int, notes: list[str], every: bool) -> Points:
    """(num_seqs, new, past, microseconds) of one layer: one prompt, and the most of that length
    that were measured; with `every` each number of them. If these heads were not measured, time
    goes by query heads at about as many queries each. `notes` gets a line on the reach of the
    table.
    """
    exact = rows[(rows["num_heads"] == heads) & (rows["num_key_value_heads"] == kv_heads)]
    scale = 1.0
    if not len(exact):
        group, queries = _queries(rows, heads // kv_heads, notes)
        near = min(group["num_heads"].unique().tolist(), key=lambda n: (abs(n - heads), n))
        exact, scale = group[group["num_heads"] == near], heads / near
        notes.append(
            f"outside the grid: prefill of {heads} heads, read as {near} ({queries} queries each) "
            f"x {scale:g}"
        )
    points: Points = []
    for new, curve in exact.groupby("isl"):
        us = _us(curve, "batch_size") * scale
        counts = us.index if every else {us.index.min(), us.index.max()}
        points += [[int(n), int(new), 0, round(float(us[n]), 3)] for n in sorted(counts)]
    if min(point[0] for point in points) != 1:
        raise InputError(
            key="prefill attention",
            problem="no prompt was measured alone",
            remedy="take another version of the tables",
        )
    notes.append(
        f"prefill attention: whole prompts of up to {points[-1][1]:,} tokens, no past; what comes "
        "behind stored tokens takes what the whole takes beyond them"
    )
    return points


def attention_rows(table: Any, head_size: int, kv_dtype: str, notes: list[str]) -> Any:
    """Rows of full attention with K and V of this type, of this head size or of the nearest that
    was measured.
    """
    rows = typed_rows(table, kv_dtype, 0)
    sizes = sorted(rows["head_dim"].unique().tolist())
    near = min(sizes, key=lambda size: abs(size - head_size))
    if near != head_size:
        notes.append(
            f"outside the grid: heads of {head_size}, measured were {sizes}; read as {near}, "
            "unscaled"
        )
    return rows[rows["head_dim"] == near]


def typed_rows(table: Any, kv_dtype: str, window: int) -> Any:
    """Rows of a type and a window, 0 for none; older tables have full attention only."""
    rows = table[
        (table["attn_dtype"] == DTYPE)
        & (table["kv_cache_dtype"] == kv_dtype)
        & (table["beam_width"] == 1)
    ]
    if "window_size" not in rows:
        return rows if window == 0 else rows[:0]
    return rows[rows["window_size"] == window]


def _queries(rows: Any, queries: int, notes: list[str]) -> tuple[Any, int]:
    """The rows with `queries` query heads for each head of K and V, or the nearest number that was
    measured.
    """
    ratio = rows["num_heads"] // rows["num_key_value_heads"]
    divides = rows["num_heads"] % rows["num_key_value_heads"] == 0
    measured = sorted(ratio[divides].unique().tolist())
    nearest = min(measured, key=lambda value: abs(value - queries))
    if nearest != queries:
        notes.append(
            f"outside the grid: {queries} queries for each head of K and V, measured were "
            f"{measured}; read as {nearest}"
        )
    return rows[divides & (ratio == nearest)], nearest


def _at_whole_counts(measured: list[tuple[float, float]]) -> list[tuple[int, float]]:
    """The times at whole numbers of sequences: if the measured ones are not whole, linear
    between them.
    """
    counts, us = zip(*sorted(measured), strict=True)
    near = {int(count) for count in counts} | {int(count) + 1 for count in counts}
    inside = [n for n in near if counts[0] <= n <= counts[-1]]
    points = {n: float(np.interp(n, counts, us)) for n in inside}
    if not points or counts[0] > 1:
        points[1] = us[0]
    return sorted(points.items())


def all_reduce_points(table: Any, num_gpus: int, notes: list[str]) -> Points:
    """(num_gpus, bytes, microseconds); those launched one by one are a floor of launches, so CUDA
    graphs' are taken.
    """
    rows = table[table["backend"] == "vllm_graph"]
    measured = sorted(rows["num_gpus"].unique().tolist())
    chosen = max((n for n in measured if n <= num_gpus), default=measured[0])
    if chosen != num_gpus:
        notes.append(
            f"outside the grid: all-reduce over {num_gpus} GPUs, measured were {measured}; read as "
            f"{chosen}"
        )
    rows = rows[rows["num_gpus"] == chosen]
    return points_by(rows.assign(bytes=BYTES * rows["message_size"]), "num_gpus", "bytes")
