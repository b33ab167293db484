"""A profile in the making: its sections, what its reader has to say about them, and all-reduces
if it has none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.cost.sections import AXES, FORMAT
from testbed.traces.files import read_json

PER_LAYER = "one layer; times num_layers"
COVERS = {  # what the times of a section are of, if it is another thing
    "output_head": "once per iteration",
    "once_per_iteration": "once per iteration",
    "experts": "one layer of experts",
    "all_reduce": "one all-reduce",
    "unequal_lengths": (
        "share of t(longest) - t(mean) that a batch of unequal lengths takes beyond t(mean)"
    ),
}
LARGEST = 1 << 28  # bytes; a ring is linear, so that two points say all of it


@cache
def source(name: str) -> dict[str, Any]:
    """The entry of a source in sources.yaml."""
    return yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text("utf-8"))[name]


@dataclass(frozen=True)
class Requested:
    """Values of the command line that the folder lacks; None for nothing. model: a name, or the
    shape itself. kv_dtype_bytes, weight_bits: of the model, in place of its own.
    """

    model: str | ModelSpec | None = None
    gpu: str | None = None
    tensor_parallel: int | None = None
    kv_dtype_bytes: int | None = None
    weight_bits: float | None = None


@dataclass
class Imported:
    """The profile of one model's shard on one GPU, from `source`. notes: one line for each thing
    that a reader of the profile should know: how far outside its grid the source had to be read,
    and what it does not hold. gpu is the data sheet, None if there is none. graph_sizes: what
    batches are padded to. not_measured: the first word of sections that were not measured, and how
    they were computed.
    """

    source: str
    device: str
    model: ModelSpec
    num_gpus: int
    gpu: GpuSpec | None
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    origin: dict[str, Any] = field(default_factory=dict)
    graph_sizes: list[int] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, points: Iterable[list[Any]], note: str, **more: Any) -> None:
        """A section; its points end in microseconds unless `columns` says otherwise."""
        body = {
            "covers": COVERS.get(name, PER_LAYER),
            "axes": list(AXES[name][0]),
            "columns": ["us"],
            "note": note,
        }
        self.sections[name] = {**body, **more, "points": sorted(points)}

    def add_all_reduces(self, points: Iterable[list[Any]], note: str) -> None:
        """Measured all-reduces."""
        self.add("all_reduce", points, note)
        self.notes.append(f"all-reduces: {note}")

    def profile(self) -> Mapping[str, Any]:
        """The whole as our format has it."""
        fingerprint = {
            "source": f"imported from {self.source}",
            "device": self.device,
            **self.origin,
        }
        if self.not_measured:
            fingerprint["not_measured"] = self.not_measured
        return {
            "format": FORMAT,
            "fingerprint": {**fingerprint, "notes": list(dict.fromkeys(self.notes))},
            "model": asdict(self.model),
            "num_gpus": self.num_gpus,
            "gpu": None if self.gpu is None else asdict(replace(self.gpu, device=self.device)),
            **({"cuda_graph_sizes": self.graph_sizes} if self.graph_sizes else {}),
            "sections": self.sections,
            "fit": None,
        }


@dataclass(frozen=True)
class Link:
    """bandwidth: bytes/s each way between two GPUs; latency_s: seconds that an all-reduce takes
    beyond its bytes.
    """

    bandwidth: float
    latency_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"a ring over links of {self.bandwidth / 1e9:g} GB/s, {self.latency_s * 1e6:g} us each"
        )

    def ring(self, num_gpus: int) -> list[list[float]]:
        """(num_gpus, bytes, microseconds): each GPU sends 2 (n - 1) / n of the bytes
        (Megatron-LM).
        """
        per_byte = 2 * (num_gpus - 1) / num_gpus / self.bandwidth
        return [
            [num_gpus, size, round(1e6 * (self.latency_s + size * per_byte), 6)]
            for size in (1, LARGEST)
        ]


def bench_link(folder: Path) -> Link | None:
    """The link of LLMServingSim's config.json, GB/s and ns there, in the folder or the one above;
    None without.
    """
    for place in (folder, folder.parent):
        path = place / "config.json"
        content = read_json(str(path)) if path.is_file() else {}
        if isinstance(content, dict) and "link_bw" in content:
            bandwidth, latency = (
                _first(path, content, name) for name in ("link_bw", "link_latency")
            )
            return Link(bandwidth * 1e9, latency * 1e-9)
    return None


def _first(path: Path, content: dict[str, Any], name: str) -> float:
    """The value of one dimension; the file may list several, the innermost first."""
    value = content.get(name, 0)
    value = value[0] if isinstance(value, list) and value else value
    if type(value) not in (int, float) or value < 0 or (name == "link_bw" and value == 0):
        raise InputError(
            key=path,
            problem=f"{name} is {value!r}, not a number above 0",
            remedy="mend it",
        )
    return float(value)


def add_all_reduces(imported: Imported, source: Path) -> None:
    """All-reduces of several GPUs, if the source has none: over the link of its benchmark."""
    if imported.num_gpus == 1 or "all_reduce" in imported.sections:
        return
    link = bench_link(source)
    if link is None:
        imported.notes.append(
            "missing: all-reduces; a ring over the data sheet's links stands in for them, without "
            "latency"
        )
        return
    imported.add("all_reduce", link.ring(imported.num_gpus), f"not measured: {link}")
    imported.notes.append(f"all-reduces were not measured: {link}")
