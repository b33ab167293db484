"""LLMServingSim's profiler (github.com/casys-kaist/LLMServingSim): layer times as CSVs, one folder a degree."""

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from experiments.importers.imported import ONCE, PER_LAYER, Asked, Imported
from experiments.importers.known_shapes import gpu_named, gpu_of_device, model_named
from experiments.importers.llmservingsim_skew import unequal_lengths
from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from traces.files import read_table

NAME = "LLMServingSim"
# What a layer holds, as often as it runs; LLaMA has a norm before attention and one before the feed-forward.
IN_A_LAYER = {
    "layernorm": 2, "qkv_proj": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1, "down_proj": 1,
}  # fmt: skip
OPTIONAL = {"qk_norm": 1}  # Qwen3's
ONCE_BY_TOKENS = ("embedding", "final_layernorm")
ONCE_BY_ROWS = ("lm_head", "sampler")
ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
BEYOND = "beyond it the last piece goes on"
TILE = 16  # rows of the smallest tile of a matrix product on tensor cores
GRAPHS = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]  # what vLLM captures by default, where it may take 512


def is_here(folder: Path) -> bool:
    """Whether the folder, or one of a degree below it, holds such CSVs."""
    return bool(_degrees(folder))


def read(folder: Path, asked: Asked) -> Imported:
    """The profile of one tensor-parallel degree."""
    degrees = _degrees(folder)
    degree = asked.tensor_parallel or (next(iter(degrees)) if len(degrees) == 1 else None)
    if degree not in degrees:
        known = ", ".join(map(str, sorted(degrees)))
        raise InputError(f"{folder}: holds the degrees {known}; say which by --tensor-parallel")
    here, meta = degrees[degree], _meta(folder)
    model = _model(folder, meta, asked)
    device = str(meta.get("gpu") or asked.gpu or "unknown")
    gpu = gpu_named(asked.gpu) if asked.gpu else gpu_of_device(device)
    kept = ("vllm_version", "cuda_version", "profiled_at", "variant")
    origin = {"folder": here.name, **{key: str(meta[key]) for key in kept if key in meta}}
    found = Imported(NAME, device, model, degree, gpu, origin=origin)
    _add_layers(found, here)
    _add_attention(found, here)
    _add_unequal(found, here, meta, degree)
    _add_what_is_missing(found)
    return found


def _degrees(folder: Path) -> dict[int, Path]:
    """The folders of measured degrees, `folder` itself or those in it, by the number at the end of their names."""
    found = {}
    for place in (folder, *sorted(folder.glob("*tp*"))):
        number = re.search(r"tp(\d+)$", place.name)
        if number and _csv(place, "attention", must=False):
            found[int(number[1])] = place
    return found


def _csv(folder: Path, name: str, must: bool = True) -> Path | None:
    for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
        if path.is_file():
            return path
    if must:
        raise InputError(f"{folder}: no {name}.csv nor {name}.csv.gz; the profiler writes one")
    return None


def _meta(folder: Path) -> Mapping[str, Any]:
    """What the profiler says of itself, in the folder or above it; nothing where it is not there."""
    for place in (folder, folder.parent):
        for name in ("meta.yaml", "profile_meta.yaml"):
            if (place / name).is_file():
                value = yaml.safe_load((place / name).read_text(encoding="utf-8"))
                return value if isinstance(value, dict) else {}
    return {}


def _model(folder: Path, meta: Mapping[str, Any], asked: Asked) -> ModelSpec:
    name = asked.model or meta.get("model")
    if not name:
        raise InputError(f"{folder}: no meta.yaml says which model this is; say it by --model")
    return model_named(str(name))


def _by_layer(path: Path, count: str) -> dict[str, dict[int, float]]:
    columns = read_table(str(path), ["layer", count, "time_us"])
    found: dict[str, dict[int, float]] = {}
    for layer, number, time in zip(columns["layer"], columns[count], columns["time_us"], strict=True):
        found.setdefault(layer, {})[int(number)] = float(time)
    return found


def _sum(path: Path, layers: Mapping[str, dict[int, float]], times: Mapping[str, int]) -> list[list[float]]:
    absent = [name for name in times if name not in layers]
    if absent:
        raise InputError(f"{path}: no times of {', '.join(absent)}; it has {', '.join(layers)}")
    counts = sorted(set.intersection(*(set(layers[name]) for name in times)))
    return [[n, round(sum(times[name] * layers[name][n] for name in times), 3)] for n in counts]


def _add_layers(found: Imported, here: Path) -> None:
    dense = _csv(here, "dense")
    rows = _csv(here, "per_sequence")
    assert dense
    assert rows
    layers, heads = _by_layer(dense, "tokens"), _by_layer(rows, "sequences")
    times = IN_A_LAYER | {name: n for name, n in OPTIONAL.items() if name in layers}
    note = " + ".join(name if n == 1 else f"{n} {name}" for name, n in times.items())
    linear = _sum(dense, layers, times)
    found.add("linear", PER_LAYER, ["num_tokens"], linear, note, **_between(linear, "linear", found))
    once = _sum(dense, layers, dict.fromkeys(ONCE_BY_TOKENS, 1))
    found.add("once_per_iteration", ONCE, ["num_tokens"], once, " + ".join(ONCE_BY_TOKENS))
    head = _sum(rows, heads, dict.fromkeys(ONCE_BY_ROWS, 1))
    more = _between(head, "output_head", found)
    found.add("output_head", ONCE, ["num_rows"], head, " + ".join(ONCE_BY_ROWS), **more)
    known = {*times, *ONCE_BY_TOKENS, *ONCE_BY_ROWS}
    if unknown := sorted({*layers, *heads} - known):
        found.notes.append(f"not priced: {', '.join(unknown)}, which this reader does not know")
    found.notes.append(f"linear: up to {once[-1][0]:,} tokens an iteration; {BEYOND}")


def _between(points: list[list[float]], name: str, found: Imported) -> dict[str, str]:
    """Points no further apart than a tile show every stair of the tiles; others are read along a line."""
    if any(high[0] - low[0] > TILE for low, high in pairwise(points)):
        return {}
    found.notes.append(f"{name}: between points it takes what the next one takes (tiles of matrix products)")
    return {"between": "next"}


def _add_attention(found: Imported, here: Path) -> None:
    """Decodes alone go by total context, the token that they write included; the rest is the mixed table."""
    path = _csv(here, "attention")
    columns = read_table(str(path), list(ATTENTION))
    decodes, mixed = [], []
    for new, past, seqs, kv, us in zip(*([float(x) for x in columns[name]] for name in ATTENTION), strict=True):
        length = int(kv) + 1 if seqs else 0
        if new:
            mixed.append([int(new), int(past), int(seqs), length, us])
        elif seqs:
            decodes.append([int(seqs), int(seqs) * length, us])
    includes = ["cache_write"]
    found.add("decode_attention", PER_LAYER, ["num_seqs", "total_context"], decodes,
              "equal lengths; vLLM's attention layer, cache write included", includes=includes)  # fmt: skip
    found.add("mixed_attention", PER_LAYER, ["prefill_tokens", "past_tokens", "num_seqs", "mean_context"], mixed,
              "one prompt beside decodes of equal lengths", includes=includes)  # fmt: skip
    seqs, length = max(row[0] for row in decodes), max(row[1] // row[0] for row in decodes)
    found.notes.append(f"attention: up to {seqs} decodes of {length:,} tokens, chunks of {max(mixed)[0]:,}; {BEYOND}")
    if found.model.max_len > length:
        times = found.model.max_len / length
        found.notes.append(
            f"outside the grid: contexts up to the model's {found.model.max_len:,}, {times:.1f} x as far"
        )


def _add_unequal(found: Imported, here: Path, meta: Mapping[str, Any], degree: int) -> None:
    path = _csv(here, "skew_fit", must=False)
    if path is None:
        found.notes.append("missing: skew_fit.csv; batches of unequal lengths are priced as if of equal ones")
        return
    found.sections["unequal_lengths"], notes = unequal_lengths(path, meta, degree)
    found.notes += notes


def _add_what_is_missing(found: Imported) -> None:
    found.notes.append("missing: software times; none are priced (see testbed fit-software)")
    found.graph_sizes = list(GRAPHS)
    found.notes.append(
        "CUDA graphs: it measures eagerly; batches are padded to the sizes that vLLM captures by default, up to "
        f"{GRAPHS[-1]} (cost.choices.cuda_graph_sizes=[] for a server with --enforce-eager)"
    )
    found.notes.append("missing: swaps; the data sheet's link to the host stands in for them, without latency")
    found.notes.append("missing: block copies; a run that needs them is refused")
    if found.num_gpus > 1:
        found.notes.append("missing: all-reduces; a ring over the data sheet's links stands in for them")
    if found.gpu is None:
        found.notes.append(f"missing: the data sheet of {found.device}; name one by --gpu")
