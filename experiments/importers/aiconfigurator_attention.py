"""AIConfigurator's attention tables: vLLM's kernels by batch, heads, heads of K and V, and length."""

from itertools import pairwise
from typing import Any

from testbed.core.errors import InputError

US_PER_MS = 1000.0


def decode_points(table: Any, heads: int, kv_heads: int, head_size: int, notes: list[str]) -> list[list[float]]:
    """(num_seqs, total_context, microseconds) of one layer's decode.

    The kernel's time goes by batch x heads of K and V at a given number of queries for each of them, so a batch of a
    model with more such heads than were measured is read as a larger batch of one with fewer. A row's length is
    step + 1.
    """
    rows = _kind(table, head_size, notes)
    group, found = _group(rows, heads // kv_heads, notes)
    most = int(group[group["num_key_value_heads"] <= kv_heads]["num_key_value_heads"].max())
    chosen = group[group["num_key_value_heads"] == most]
    if most != kv_heads:
        notes.append(f"decode attention: {kv_heads} heads of K and V are read as {most} with {kv_heads / most:g} x "
                     f"the batch ({found} queries each)")  # fmt: skip
    points = []
    for step, curve in chosen.groupby("step"):
        us = curve.groupby("batch_size")["latency"].median() * US_PER_MS
        measured = [(int(batch) * most / kv_heads, float(time)) for batch, time in us.items()]
        points += [[n, n * (int(step) + 1), round(time, 3)] for n, time in _whole(measured)]
    longest, widest = int(chosen["step"].max()) + 1, max(point[0] for point in points)
    reach = f"up to {widest} sequences or {longest:,} tokens each, not both"
    notes.append(f"decode attention: {reach}; beyond them the last piece goes on")
    return points


def prefill_points(table: Any, heads: int, kv_heads: int, head_size: int, notes: list[str]) -> list[list[float]]:
    """(num_seqs, new, past, microseconds) of one layer: one prompt, and the most of that length that were measured."""
    rows = _kind(table, head_size, notes)
    exact = rows[(rows["num_heads"] == heads) & (rows["num_key_value_heads"] == kv_heads)]
    scale = 1.0
    if not len(exact):
        exact, scale = _nearest(rows, heads, kv_heads, notes)
    us = exact.groupby(["isl", "batch_size"])["latency"].median() * US_PER_MS * scale
    points = []
    for new in sorted(set(exact["isl"])):
        batches = us[new]
        for count in sorted({min(batches.index), max(batches.index)}):
            points.append([int(count), int(new), 0, round(float(batches[count]), 3)])
    if min(point[0] for point in points) != 1:
        raise InputError("prefill attention: no prompt was measured alone; take another version of the tables")
    notes.append(f"prefill attention: whole prompts of up to {points[-1][1]:,} tokens, no past; what comes behind "
                 "stored tokens takes what the whole takes beyond them")  # fmt: skip
    return points


def _kind(table: Any, head_size: int, notes: list[str]) -> Any:
    """16-bit rows of this head size; a row that is there twice counts once, by its median."""
    rows = table[(table["attn_dtype"] == "bfloat16") & (table["kv_cache_dtype"] == "bfloat16")]
    rows = rows[rows["beam_width"] == 1]
    sizes = sorted({int(size) for size in rows["head_dim"]})
    if head_size not in sizes:
        near = min(sizes, key=lambda size: abs(size - head_size))
        notes.append(f"outside the grid: heads of {head_size}, measured were {sizes}; read as {near}, unscaled")
        head_size = near
    return rows[rows["head_dim"] == head_size]


def _group(rows: Any, queries: int, notes: list[str]) -> tuple[Any, int]:
    """The rows with so many query heads for each head of K and V, or the nearest number that was measured."""
    ratio = rows["num_heads"] // rows["num_key_value_heads"]
    whole = rows["num_heads"] % rows["num_key_value_heads"] == 0
    known = sorted({int(value) for value in ratio[whole]})
    found = min(known, key=lambda value: (abs(value - queries), value))
    if found != queries:
        notes.append(
            f"outside the grid: {queries} queries for each head of K and V, measured were {known}; read as {found}"
        )
    return rows[whole & (ratio == found)], found


def _whole(measured: list[tuple[float, float]]) -> list[tuple[int, float]]:
    """The times at whole numbers of sequences: where the measured ones are not whole, linear between them."""
    measured.sort()
    points = {int(x): y for x, y in measured if x == int(x)}
    for (low, y_low), (high, y_high) in pairwise(measured):
        for n in {int(low) + 1, int(high)}:
            if low < n < high:
                points.setdefault(n, y_low + (y_high - y_low) * (n - low) / (high - low))
    if not points or (1 not in points and measured[0][0] > 1):
        points[1] = measured[0][1]
    return sorted(points.items())


def _nearest(rows: Any, heads: int, kv_heads: int, notes: list[str]) -> tuple[Any, float]:
    """Rows of another number of heads at about as many queries each; time goes by query heads."""
    group, queries = _group(rows, heads // kv_heads, notes)
    near = min({int(n) for n in group["num_heads"]}, key=lambda n: (abs(n - heads), n))
    notes.append(
        f"outside the grid: prefill of {heads} heads, read as {near} ({queries} queries each) x {heads / near:g}"
    )
    return group[group["num_heads"] == near], heads / near
