"""LLMServingSim's profiler (github.com/casys-kaist/LLMServingSim): layer times as CSV files, in one
folder for each tensor-parallel degree.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.specs import ModelSpec
from testbed.experiments.real.importers.imported import Imported, Requested, source
from testbed.experiments.real.importers.known_shapes import data_sheet, known_name, model_named
from testbed.traces.files import Numbers, plain_or_packed, read_numbers, read_table

NAME = "LLMServingSim"
OPTIONAL = "qk_norm"  # Qwen3's
ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
MICROSECONDS = Numbers("a time of at least 0", 0)
COUNTS = Numbers("a whole number of at least 0", 0, are_whole=True)
BEYOND = "beyond it the last line continues"
SKEW_LABELS = (
    "kp_label",
    "n_label",
    "skew_rate_label",
    "kv_big_label",
)  # of bins, by their upper edges
UNIT = {"": 1, "%": 1, "k": 1024}
SKEW_RATIO = 4.0  # its profiler's long lengths over its short ones, if meta.yaml does not say
TILE = 16  # rows of the smallest tile of a matrix product on tensor cores
GRAPHS = [
    1,
    2,
    4,
    *range(8, 256, 8),
    *range(256, 513, 16),
]  # what vLLM captures by default, if it may take 512


def is_here(folder: Path) -> bool:
    """True if the folder has such CSV files, itself or in a folder of one degree below it."""
    return bool(_degrees(folder))


def read(folder: Path, requested: Requested) -> Imported:
    """The profile of one tensor-parallel degree.

    Raises:
        InputError: the folder lacks the requested degree, or has several and none is requested.
    """
    degrees = _degrees(folder)
    degree = requested.tensor_parallel or (next(iter(degrees)) if len(degrees) == 1 else None)
    if degree not in degrees:
        listed = ", ".join(map(str, sorted(degrees)))
        raise InputError(
            key=folder,
            problem=f"has the degrees {listed}",
            remedy="choose one with --tensor-parallel",
        )
    paths = [
        place / name
        for place in (folder, folder.parent)
        for name in ("meta.yaml", "profile_meta.yaml")
    ]
    path = next((path for path in paths if path.is_file()), None)
    content = yaml.safe_load(path.read_text(encoding="utf-8")) if path else {}
    here, meta = degrees[degree], content if isinstance(content, dict) else {}
    model = _model(folder, meta, requested)
    device = str(meta.get("gpu") or requested.gpu or "unknown")
    gpu = data_sheet(requested.gpu, device, folder)
    kept = ("vllm_version", "cuda_version", "profiled_at", "variant")
    origin = {"folder": here.name, **{key: str(meta[key]) for key in kept if key in meta}}
    imported = Imported(
        source=NAME, device=device, model=model, num_gpus=degree, gpu=gpu, origin=origin
    )
    _add_layers(imported, here)
    _add_attention(imported, here)
    _add_unequal(imported, here, meta, degree)
    imported.graph_sizes = list(GRAPHS)
    imported.notes += source(NAME)["notes"]
    if imported.gpu is None:
        imported.notes.append(f"missing: the data sheet of {imported.device}; name one by --gpu")
    return imported


def _degrees(folder: Path) -> dict[int, Path]:
    by_degree = {}
    for place in (folder, *sorted(folder.glob("*tp*"))):
        number = re.search(r"tp(\d+)$", place.name)
        if number and plain_or_packed(place / "attention.csv"):
            by_degree[int(number[1])] = place
    return by_degree


def _csv(folder: Path, name: str) -> Path:
    path = plain_or_packed(folder / f"{name}.csv")
    if path is None:
        raise InputError(
            key=folder, problem=f"no {name}.csv nor {name}.csv.gz; the profiler writes one"
        )
    return path


def _model(folder: Path, meta: Mapping[str, Any], requested: Requested) -> ModelSpec:
    """The model that the user requested, or else the one that meta.yaml names.

    Raises:
        InputError: neither names one, or the requested model has another shape than that of
            meta.yaml.
    """
    reported = str(meta.get("model") or "")
    name = requested.model or reported
    if not name:
        raise InputError(
            key=folder, problem="no meta.yaml says which model this is", remedy="give --model"
        )
    model = name if isinstance(name, ModelSpec) else model_named(name)
    if known_name(reported)[1] in model_names():
        measured = model_named(reported)
        if replace(measured, name=model.name, max_len=model.max_len) != model:
            raise InputError(
                key=folder,
                problem=f"is of {measured.name}, whose shape is not that of --model {model.name}",
                remedy="leave it out",
            )
    return model


def _by_layer(path: Path, count: str) -> dict[str, dict[int, float]]:
    times: dict[str, dict[int, float]] = {}
    for line, (layer, number, us) in enumerate(_timed(path, count, names=["layer"]), start=2):
        if times.setdefault(layer, {}).setdefault(number, us) != us:
            raise InputError(
                key=f"{path}, line {line}",
                problem=f"another time of {layer} at {number} {count} stands above",
                remedy="keep one",
            )
    return times


def _timed(path: Path, *counts: str, names: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
    """The rows of a table: names, counts and microseconds."""
    columns = read_table(str(path), [*names, *counts, "time_us"])
    times = read_numbers(str(path), "time_us", columns["time_us"], MICROSECONDS)
    return zip(
        *map(columns.get, names),
        *(_counts(path, name, columns) for name in counts),
        times.tolist(),
        strict=True,
    )


def _counts(path: Path, name: str, columns: Mapping[str, list[str]]) -> list[int]:
    return read_numbers(str(path), name, columns[name], COUNTS).tolist()


def _add_summed(
    imported: Imported,
    section: str,
    path: Path,
    layers: Mapping[str, dict[int, float]],
    stairs: bool = False,
) -> None:
    """Add a section that sums the times of layers, each as often as it runs, at the token counts at
    which all of them were measured.

    stairs: the layers are matrix products, whose time grows in steps of a tile. If points are at
    most a tile apart, the profile takes the next point's time between two points, else a line.
    """
    named = source(imported.source)["layers"][section].items()
    times = {name: n for name, n in named if name in layers or name != OPTIONAL}
    absent = [name for name in times if name not in layers]
    if absent:
        raise InputError(
            key=path, problem=f"no times of {', '.join(absent)}; it has {', '.join(layers)}"
        )
    counts, more = sorted(set.intersection(*(set(layers[name]) for name in times))), {}
    if stairs and all(high - low <= TILE for low, high in pairwise(counts)):
        imported.notes.append(
            f"{section}: between points it takes what the next one takes (tiles of matrix products)"
        )
        more = {"between": "next"}
    points = [[n, round(sum(times[name] * layers[name][n] for name in times), 3)] for n in counts]
    imported.add(
        section,
        points,
        " + ".join(name if n == 1 else f"{n} {name}" for name, n in times.items()),
        **more,
    )


def _add_layers(imported: Imported, here: Path) -> None:
    dense, rows = _csv(here, "dense"), _csv(here, "per_sequence")
    layers, heads = _by_layer(dense, "tokens"), _by_layer(rows, "sequences")
    _add_summed(imported, "linear", dense, layers, stairs=True)
    _add_summed(imported, "once_per_iteration", dense, layers)
    _add_summed(imported, "output_head", rows, heads, stairs=True)
    used = {name for section in source(NAME)["layers"].values() for name in section}
    if unknown := sorted({*layers, *heads} - used):
        imported.notes.append(f"not used: {', '.join(unknown)}, which this reader does not know")
    longest, _ = imported.sections["once_per_iteration"]["points"][-1]
    imported.notes.append(f"linear: up to {longest:,} tokens an iteration; {BEYOND}")


def _add_attention(imported: Imported, here: Path) -> None:
    """Add the times of attention. Rows of decodes alone are listed by their total context, which
    includes the token that they write; all others form the mixed table.
    """
    path = _csv(here, "attention")
    decodes, mixed = [], []
    for new, past, seqs, kv, us in _timed(path, *ATTENTION):
        length = kv + 1 if seqs else 0
        if new:
            mixed.append([new, past, seqs, length, us])
        elif seqs:
            decodes.append([seqs, seqs * length, us])
    if not (decodes and mixed):
        raise InputError(key=path, problem="lacks decodes alone, or prompts together with decodes")
    includes = ["cache_write"]
    source = "equal lengths; vLLM's attention layer, cache write included"
    imported.add("decode_attention", decodes, source, includes=includes)
    imported.add(
        "mixed_attention", mixed, "one prompt with decodes of equal lengths", includes=includes
    )
    seqs, length = max(row[0] for row in decodes), max(row[1] // row[0] for row in decodes)
    imported.notes.append(
        f"attention: up to {seqs} decodes of {length:,} tokens, chunks of {max(mixed)[0]:,}; "
        f"{BEYOND}"
    )
    longest = imported.model.max_len
    if longest > length:
        imported.notes.append(
            f"outside the grid: contexts up to the model's {longest:,}, {longest / length:.1f} x "
            "as far"
        )


def _add_unequal(imported: Imported, here: Path, meta: Mapping[str, Any], degree: int) -> None:
    """Add the time that unequal lengths add to a batch, by bins.

    The profiler measured batches of two lengths, the long ones `skew_rep` times the short ones. Its
    shares are quotients of small differences. Shares below 0 or above 1 are noise: a batch takes at
    least the time of equal lengths with as many tokens, and at most the time in which all are as
    long as the longest.
    """
    path, fit = plain_or_packed(here / "skew_fit.csv"), meta.get("skew_fit") or {}
    by_degree = fit.get("per_tp") or {}
    if path is None or not fit.get("enabled", by_degree):
        why = (
            "missing: skew_fit.csv"
            if path is None
            else "skew_fit.csv is left out, as meta.yaml does not enable it"
        )
        imported.notes.append(
            f"{why}; batches of unequal lengths take what those of equal ones take"
        )
        return
    ratio = float((meta.get("skew_profile", {}).get("grid") or {}).get("skew_rep", SKEW_RATIO))
    points, num_outside = _skew_points(path, ratio)
    pooled = (by_degree.get(degree) or by_degree.get(str(degree)) or {}).get("alpha_default")
    note = f"upper edges of bins; measured on batches of two lengths, one {ratio:g} times the other"
    default = 0.0 if pooled is None else pooled
    imported.add("unequal_lengths", points, note, columns=["share"], default=default)
    otherwise = f"{pooled}, its own pooled value"
    if pooled is None:
        otherwise = f"0, as meta.yaml has no alpha_default for tp{degree}"
    imported.notes += [
        f"unequal lengths: {len(points):,} measured bins; any other has {otherwise}",
        f"unequal lengths: {num_outside:,} of the bins lie outside 0 to 1, which is noise, and "
        "were cut there",
    ]


def _skew_points(path: Path, ratio: float) -> tuple[list[list[Any]], int]:
    """A point for each bin, and the number of bins whose share is outside 0 to 1.

    The skew of a bin is the percentage s of long sequences, whose length is `ratio` times the
    others', so the mean length is (1 + (ratio - 1) s / 100) / ratio of the longest.
    """
    columns = read_table(str(path), ["pc", *SKEW_LABELS, "alpha"], ignored=["n_samples"])
    shares = read_numbers(str(path), "alpha", columns["alpha"], Numbers("a share"))
    edges = [[_edge(path, label) for label in columns[name]] for name in SKEW_LABELS]
    points = []
    for pc, past, seqs, skew, longest, share in zip(
        _counts(path, "pc", columns), *edges, shares.tolist(), strict=True
    ):
        mean_percent = round(100 * (1 + (ratio - 1) * skew / 100) / ratio)
        points.append([pc, past, seqs, mean_percent, longest, min(1.0, max(0.0, share))])
    return points, sum(not 0 <= share <= 1 for share in shares)


def _edge(path: Path, label: str) -> int:
    """The upper edge of a bin; one above the last edge (`sr>70%`) ends at 100 percent or goes on at
    the top.
    """
    match = re.fullmatch(r"\w+?(<=|>|=)(\d+)([%k]?)", label)
    if match is None:
        raise InputError(
            key=path,
            problem=f"{label!r} is not the label of a bin such as n<=128 or kvB<=16k",
            remedy="mend the file",
        )
    sign, number, unit = match.groups()
    if sign == ">":
        return 100 if unit == "%" else 2**31 - 1
    return int(number) * UNIT[unit]
