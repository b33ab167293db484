"""AIConfigurator's tables without every n-th row, as profiles, and these rows: how far off is what lies between rows.

Every shipped model that is not plain and whose parts the tables have is imported on 1, 2, 4 and 8 GPUs, with 16-bit and
with fp8 K and V. Matrix products are left out, because they are read between rows of a whole grid.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.core.shapes import model_names, read_model
from testbed.core.specs import ModelSpec
from testbed.cost.attention import DecodeTable, PrefillTable
from testbed.cost.interpolation import Knots
from testbed.cost.kv_groups import WindowTable
from testbed.cost.model import UNBOUNDED, WindowReads, Work
from testbed.cost.sections import Rows, rows
from testbed.experiments.importers.aiconfigurator import from_tables, tables_of
from testbed.experiments.importers.imported import Imported, Requested

PARTS = ("decode_attention", "prefill_attention", "window_decode_attention", "window_prefill_attention",
         "state_decode", "state_prefill", "experts")  # fmt: skip
Key = tuple[Any, ...]


class Row(NamedTuple):
    """A held-back row: its kind, its shape and how far off the profile without it is; None outside its other rows."""

    kind: str
    section: str
    shape: Key
    error: float | None


def held_back(folder: Path, every: int) -> Iterator[Row]:
    """The rows of all shards; a shard with the same rows as an earlier one is left out."""
    tables = {name: table for name, table in tables_of(folder).items() if name != "gemm"}
    kept = {name: table[table.index % every != every - 1] for name, table in tables.items()}
    kept["all_reduce"] = tables["all_reduce"]
    seen = set[str]()
    for name, num_gpus, kv_bytes in product(model_names(), (1, 2, 4, 8), (2, 1)):
        model = read_model(name)
        if model.is_plain and kv_bytes == model.dtype_bytes:
            continue
        requested = Requested(name, None, num_gpus, kv_dtype_bytes=kv_bytes)
        try:
            whole, rest = (from_tables(folder, which, requested) for which in (tables, kept))
        except InputError:
            continue  # the tables lack this shard
        for section in PARTS:
            body = whole.sections.get(section)
            if body is None or section.split("_")[0] in whole.not_measured or str(body) in seen:
                continue
            seen.add(str(body))
            yield from _rows(section, whole, rest, model.latent is not None, kv_bytes)


def _rows(section: str, whole: Imported, rest: Imported, is_latent: bool, kv_bytes: int) -> Iterator[Row]:
    kind = "latent" if is_latent else f"{'fp8' if kv_bytes == 1 else '16-bit'}, {section.split('_')[0]}"
    kind = section.split("_")[0] if section in ("experts", "state_decode", "state_prefill") else kind
    known, measured = rows(rest.profile(), section), rows(whole.profile(), section)
    here = {key for key, _ in known}
    time_ps = times(section, known, whole.model)
    grids: dict[str, list[Key]] = {}
    for name, sizes in map(partial(_sizes, section), here):
        grids.setdefault(name, []).append(sizes)
    arrays: dict[str, np.ndarray] = {name: np.array(grid) for name, grid in grids.items()}
    for key, ps in measured:
        if key not in here:
            name, sizes = _sizes(section, key)
            inside = name in arrays and _is_inside(sizes, arrays[name])
            yield Row(kind, section, key, time_ps(key) / ps - 1 if inside else None)


def _is_inside(sizes: Key, grid: np.ndarray) -> bool:
    """Whether some of the grid are at least as large on every axis, and some no larger."""
    return bool((grid <= sizes).all(axis=1).any() and (grid >= sizes).all(axis=1).any())


def _sizes(section: str, key: Key) -> tuple[str, Key]:
    """The distribution of tokens over experts, if there are any, and the sizes; of a decode the mean context."""
    if section == "experts":
        return key[0], key[1:]
    return "", (key[0], key[1] // key[0]) if section.endswith("decode_attention") else key


def times(section: str, points: Rows, model: ModelSpec) -> Callable[[Key], int]:
    """Picoseconds of one layer, by the key of a section's points."""
    if "prefill" in section:
        prompts = PrefillTable(points, 1)
        return lambda key: prompts(((key[1], key[2]),) * key[0])
    if section == "experts":
        names = dict.fromkeys(key[0] for key, _ in points)
        curves: Mapping[str, Knots] = {name: Knots((k[1], ps) for k, ps in points if k[0] == name) for name in names}
        return lambda key: curves[key[0]](key[1])
    if section == "state_decode":
        curve = Knots((key[0], ps) for key, ps in points)
        return lambda key: curve(key[0])
    if section == "decode_attention":
        decodes = DecodeTable(points, 1)
        return lambda key: decodes.span(Work(key[0], key[1], -(-key[1] // key[0])), 0).first_ps
    assert model.window is not None
    size, windows = model.window.size, WindowTable(points, model.window.size, 1)

    def window(key: Key) -> int:
        n, mean = key[0], key[1] // key[0]
        reads = WindowReads(size, n * min(mean, size), n if mean < size else 0, UNBOUNDED)
        return windows.span(Work(n, key[1], mean, windows=(reads,))).first_ps

    return window
