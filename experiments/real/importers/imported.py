"""A profile in the making: its sections, and what its reader has to say about them."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed.core.specs import GpuSpec, ModelSpec
from testbed.cost.sections import AXES, FORMAT

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

    def note_missing_all_reduces(self) -> None:
        """Note that a shard of several GPUs has none."""
        if self.num_gpus > 1 and "all_reduce" not in self.sections:
            self.notes.append(
                "missing: all-reduces; a ring over the data sheet's links stands in for them, "
                "without latency"
            )

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
