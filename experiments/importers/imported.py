"""A profile in the making: its sections, and what its reader has to say about them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.core.specs import GpuSpec, ModelSpec
from testbed.cost.sections import FORMAT

PER_LAYER = "one layer; times num_layers"
ONCE = "once per iteration"
Point = list[Any]


@dataclass(frozen=True)
class Requested:
    """What the command line says where the folder does not; None for nothing. model: a name, or the shape itself.

    link is in bytes/s, all_reduce_s the latency of an all-reduce; nccl is AIConfigurator's folder of a GPU.
    kv_dtype_bytes, weight_bits: of the model, in place of its own.
    """

    model: str | ModelSpec | None = None
    gpu: str | None = None
    tensor_parallel: int | None = None
    link: float | None = None
    all_reduce_s: float | None = None
    nccl: Path | None = None
    kv_dtype_bytes: int | None = None
    weight_bits: float | None = None


@dataclass
class Imported:
    """The profile of one model's shard on one GPU, from `source`.

    notes: one line for each thing that a reader of the profile should know: how far outside its grid the source had
    to be read, and what it does not hold. gpu is the data sheet, None where nobody has it. graph_sizes: what batches
    are padded to. not_measured: the first word of sections that nobody measured, and how they were computed.
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

    def add(self, name: str, covers: str, axes: Sequence[str], points: Sequence[Point], note: str, **more: Any) -> None:
        """A section; its points end in microseconds."""
        body = {"covers": covers, "axes": list(axes), "columns": ["us"], "note": note, **more}
        self.sections[name] = {**body, "points": sorted(points)}

    def profile(self) -> Mapping[str, Any]:
        """The whole as our format has it."""
        fingerprint = {"source": f"imported from {self.source}", "device": self.device, **self.origin}
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
