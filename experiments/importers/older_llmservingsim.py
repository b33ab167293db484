"""LLMServingSim's older profiler (llm_profile/perf_models/GPU/MODEL/tpN): layers.csv, and attention.csv, which times
FlashAttention alone.

A row of attention.csv has all keys of its batch in kv_cache_size: a prompt's own tokens and those before it, or the
contexts of all decodes together.
"""

import re
from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.importers.imported import Imported, Requested, source
from testbed.experiments.importers.known_shapes import gpu_named, model_named
from testbed.experiments.importers.llmservingsim import add_summed
from testbed.traces.files import plain_or_packed, read_table

NAME = "LLMServingSim's older profiler"
TIMES = ("time_stats.attn_prefill.median", "time_stats.attn_decode.median")  # milliseconds
SIZES = ("batch_size", "prefill_chunk_size", "kv_cache_size")


def is_here(folder: Path) -> bool:
    """Whether it is the folder of one degree."""
    return folder.is_dir() and plain_or_packed(folder / "layers.csv") is not None


def read(folder: Path, requested: Requested) -> Imported:
    """The profile of that degree; the GPU is a name of the profiler's, so the data sheet is asked for."""
    path, attention = (plain_or_packed(folder / f"{name}.csv") for name in ("layers", "attention"))
    degree = re.fullmatch(r"tp(\d+)", folder.name)
    if attention is None:
        raise InputError(f"{folder}: no attention.csv; its predictions are another model's, and not read")
    if degree is None or not (requested.model and requested.gpu):
        raise InputError(f"{folder}: name a folder tpN, and --model and --gpu, of which it has bare names")
    gpu = gpu_named(requested.gpu)
    found = Imported(NAME, gpu.device or gpu.name, model_named(str(requested.model)), int(degree[1]), gpu,
                     origin={"folder": "/".join(folder.parts[-4:])})  # fmt: skip
    table = read_table(str(path), ["layer_name", "input", "kv_cache", "latency(ns)"])
    layers: dict[str, dict[int, float]] = {}
    for name, tokens, past, ns in zip(*table.values(), strict=True):
        if int(past) == 0:
            layers.setdefault(name, {})[int(tokens)] = float(ns) / 1e3
    for section in source(NAME)["layers"]:
        add_summed(found, section, Path(str(path)), layers)
    _add_attention(found, str(attention))
    found.notes += source(NAME)["notes"]
    return found


def _add_attention(found: Imported, path: str) -> None:
    table = read_table(path, [*SIZES, *TIMES])
    prefill, decodes = {}, {}
    for batch, chunk, keys, prefill_ms, decode_ms in zip(*table.values(), strict=True):
        new, total = int(chunk), int(keys)
        if new and prefill_ms and total >= new:
            prefill[1, new, total - new] = round(1e3 * float(prefill_ms), 3)
        elif decode_ms and total >= int(batch):
            decodes[int(batch), total // int(batch) * int(batch)] = round(1e3 * float(decode_ms), 3)
    if not (prefill and decodes):
        raise InputError(f"{path}: has no {'decodes' if prefill else 'prompts'}; profile both")
    for name, us_of in (("prefill_attention", prefill), ("decode_attention", decodes)):
        points = ([*key, us] for key, us in us_of.items())
        found.add(name, points, "FlashAttention alone, equal lengths", includes=["cache_write"])
