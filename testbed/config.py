"""The typed configuration of a run: what `testbed run`, the Python API, kept runs and the GPU
engine are built from.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

from testbed.core.errors import InputError
from testbed.core.shapes import check_known_shape
from testbed.core.specs import LAYERS, ModelSpec, ServerSpec
from testbed.parts import Part
from testbed.schema import read

# Values that need not be there.
GROUPS = ("engine", "kv_memory_of", "software", "tiers", "num_ffn_layers", *LAYERS)
SHARE = re.compile(r"(?P<beam>beam(?!1:))?(?P<num_seqs>[1-9]\d{0,3}):(?P<weight>\d+(\.\d*)?|\.\d+)")
MIX_HINT = (
    "give N:WEIGHT and, for N of 2 or more, beamN:WEIGHT, with commas between, such as "
    "1:0.5,4:0.3,beam4:0.2"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a pool in GiB was measured on: a GPU by name, and how many of them."""

    gpu: str
    num_gpus: int


@dataclass(frozen=True, slots=True)
class ServerConfig(ServerSpec):
    """A server and how large its KV pool is.

    num_blocks: the pool in blocks of the policy's size, in place of kv_memory_gib. kv_memory_of:
    the machine for which the pools of kv_memory_gib are valid, None where it is unknown.
    """

    num_blocks: int | None = None
    kv_memory_of: Machine | None = None

    @classmethod
    def from_values(cls, values: Any, key: str) -> "ServerConfig":
        """From a mapping or a ServerSpec."""
        if isinstance(values, ServerSpec):
            return cls(**{one.name: getattr(values, one.name) for one in fields(values)})
        if isinstance(values, Mapping):
            unset = (
                ("_target_",)
                if values.get("kv_memory_gib") is not None
                else ("_target_", "kv_memory_gib")
            )
            values = {name: value for name, value in values.items() if name not in unset}
        return read(cls, values, key)

    @classmethod
    def default(cls, name: str) -> Any:
        return next(one.default for one in fields(cls) if one.name == name)


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """The limits and the sampling of every request; experiments/conf/run.yaml explains every
    value.
    """

    max_len: int | None = None
    num_seqs: int = 1
    beam: bool = False
    mix: str | None = None

    def __post_init__(self) -> None:
        if self.beam and self.num_seqs == 1:
            raise InputError(
                "workload.beam=true: a beam of one sequence is no search (workload.num_seqs=2 or "
                "more)"
            )
        if self.mix is not None:
            parse_mix(self.mix)
            self.check_alone(f"workload.mix={self.mix}")

    def check_alone(self, other: str) -> None:
        """Nothing else may say how requests sample where `other` does."""
        if self.beam or self.num_seqs > 1:
            raise InputError(
                f"{other}: says how each request samples (leave out workload.num_seqs and "
                f"workload.beam)"
            )


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds to the first token, and for each later one, that a request must keep; None: no
    limit.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the GPU engine computes; experiments/conf/engine/gpu.yaml explains every value."""

    weights: str = "random"
    device: str = "cuda"
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    debug: bool = False
    graphs: int = 256
    warm: tuple[int, ...] = (64, 512, 2048)
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class SoftwareConfig:
    """The simulated system, its times as `cost.sections.Choices` has them (overhead_s None: a
    profile's minimum).
    """

    name: str
    overhead_s: float | None = None
    overhead_per_request_s: float = 0.0
    overhead_per_token_s: float = 0.0
    overhead_per_sequence_s: float = 0.0
    overhead_per_input_s: float = 0.0
    sequences_per_fork: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run: its parts, and the values that experiments/conf/run.yaml explains.

    engine: None simulates. software: costs that charge the software time of another system are
    refused; None takes any.
    """

    model: ModelSpec
    server: ServerConfig
    trace: Part
    arrivals: Part
    policy: Part
    scheduler: Part
    preemption: Part
    cost: Part
    beams: Part
    software: SoftwareConfig | None = None
    engine: EngineConfig | None = None
    seed: int = 0
    workload: WorkloadConfig = WorkloadConfig()
    swap_space_gib: float = 20
    slo: Slo = Slo()
    null_blocks: int = 0
    window_s: tuple[float, float] | None = None
    stop_at_latency: float | None = None
    fast_forward: bool = True
    outputs: Literal["full", "summary"] = "full"

    def __post_init__(self) -> None:
        from testbed.core.request import PS  # here, because it needs NumPy, and help should not

        if self.window_s is not None and not round(self.window_s[0] * PS) < round(
            self.window_s[1] * PS
        ):
            raise InputError(
                f"window_s={list(self.window_s)}: the end must come after the start, in seconds; "
                f"or null"
            )
        check_known_shape(self.model)

    @property
    def parts(self) -> dict[str, Part]:
        return {
            one.name: value
            for one in fields(self)
            if isinstance(value := getattr(self, one.name), Part)
        }

    @classmethod
    def from_values(cls, values: Any) -> "RunConfig":
        """From plain values, as Hydra composes them and a run folder's config.yaml keeps them."""
        return read(cls, values)

    @property
    def values(self) -> dict[str, Any]:
        """The plain values, from which `from_values` makes an equal config where no part is an
        object.
        """
        return _plain([(one.name, _values(getattr(self, one.name))) for one in fields(self)])


def _values(value: Any) -> Any:
    if isinstance(value, Part):
        return value.values
    return asdict(value, dict_factory=_plain) if hasattr(value, "__dataclass_fields__") else value


def _plain(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """Tuples are lists; values that need not be there are left out."""
    kept = (one for one in entries if one[1] is not None or one[0] not in GROUPS)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept}


class Share(NamedTuple):
    """Requests of num_seqs sequences, a beam or parallel samples, that are `weight` of all weights
    together.
    """

    num_seqs: int
    beam: bool
    weight: float


def parse_mix(text: str) -> list[Share]:
    shares = []
    for part in text.split(","):
        match = SHARE.fullmatch(part.strip())
        if match is None:
            raise InputError(
                f"workload.mix={text}: {part.strip()!r} is no share of the requests ({MIX_HINT})"
            )
        shares.append(
            Share(int(match["num_seqs"]), match["beam"] is not None, float(match["weight"]))
        )
    if not sum(share.weight for share in shares) > 0:
        raise InputError(f"workload.mix={text}: no weight is above 0 ({MIX_HINT})")
    return shares
