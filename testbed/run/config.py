"""The typed configuration of a run: `testbed run`, the Python API, run folders and the GPU engine
are built from it. Every field has its constraint, its unit and its meaning beside it.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields, replace
from math import isclose
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Unit, doc
from pydantic import Strict

from testbed.core.config_model import model, read
from testbed.core.errors import InputError
from testbed.core.shapes import check_known_shape
from testbed.core.specs import LAYERS, VARIANTS, ModelSpec, ServerSpec
from testbed.core.units import (
    PS,
    Count,
    Gib,
    NonNegative,
    Positive,
    PositiveCount,
    PositiveSeconds,
    PositiveTokens,
    Seconds,
    Share,
)
from testbed.cost.software import SoftwareTimes
from testbed.run.parts import Part
from testbed.vllm.releases import DEFAULT, release_numbered

# Values that a run folder's config.yaml leaves out if they are null.
FLEET = ("replicas", "servers", "router", "faults", "prefill_replicas", "handover")
OF_MODELS = ("fp8_products", "num_ffn_layers", *VARIANTS, *LAYERS)
MOST_ENGINES = 10_000  # of a fleet, 0.24 MB each
ALONE = "there is one engine without a router"
LIMITS = ("itl_s", "e2e_s")
OPTIONAL = (
    "engine",
    "kv_memory_of",
    "max_new_tokens",
    "release",
    "software",
    "speculation",
    "tiers",
    *FLEET,
    *OF_MODELS,
    *LIMITS,
)
AS_LIST = Strict(False)  # of a tuple, which a YAML file writes as a list
SHARE = re.compile(r"(?P<beam>beam(?!1:))?(?P<num_seqs>[1-9]\d{0,3}):(?P<weight>\d+(\.\d*)?|\.\d+)")
DECLARED = re.compile(r"(\d{1,6}(?:\.\d{0,6})?)x")
MIX_HINT = (
    "give N:SHARE and, for N of 2 or more, beamN:SHARE, with commas between, such as "
    "1:0.5,4:0.3,beam4:0.2"
)


@model
class Machine:
    """The machine for which a pool in GiB is valid: a GPU by name, and how many of them."""

    gpu: Annotated[str, doc("name of the GPU")]
    num_gpus: Annotated[PositiveCount, doc("GPUs")]


@model
class ServerConfig(ServerSpec):
    """A server and the size of its KV pool."""

    num_blocks: Annotated[
        PositiveCount | None,
        doc(
            "blocks of the KV pool; null: from the memory. vLLM reports one more, which it never "
            "hands out"
        ),
    ] = None
    kv_memory_of: Annotated[
        Machine | None,
        doc("the machine for which the pools of kv_memory_gib are valid; null: unknown"),
    ] = None


def declared_factor(text: str) -> float | None:
    """The factor of the output in workload.max_new_tokens; None for the model's limit."""
    if text == "model":
        return None
    number = DECLARED.fullmatch(text)
    if number is None or float(number[1]) < 1:
        raise InputError(
            key="workload.max_new_tokens",
            value=text,
            problem=(
                "is no number of tokens, no factor of the output of at least 1, such as 1.5x, and "
                "not the word model"
            ),
        )
    return float(number[1])


@model
class WorkloadConfig:
    """The limits and the sampling of every request."""

    max_len: Annotated[
        PositiveTokens | None,
        doc(
            "leave out rows of this many or more (the paper's figures: 2048); "
            "null: keep all, reject oversized"
        ),
    ] = None
    num_seqs: Annotated[
        PositiveCount, doc("sequences a request: parallel samples, or the beam's width")
    ] = 1
    beam: Annotated[bool, doc("whether the sequences are a beam")] = False
    mix: Annotated[
        str | None,
        doc('requests that sample in several ways, by shares: "1:0.5,4:0.3,beam4:0.2"'),
    ] = None

    max_new_tokens: Annotated[
        PositiveCount | str | None,
        doc(
            "output tokens at most, which each request declares: a number (at least the output), "
            "1.5x: a factor of the output; model: what its longest sequence leaves; null: the "
            "trace's column, or none"
        ),
    ] = None

    def __post_init__(self) -> None:
        if isinstance(self.max_new_tokens, str):
            declared_factor(self.max_new_tokens)
        if self.beam and self.num_seqs == 1:
            raise InputError(
                key="workload.beam",
                value="true",
                problem="a beam of one sequence is no search",
                remedy="workload.num_seqs=2 or more",
            )
        if self.mix is not None:
            parse_mix(self.mix)
            self.check_alone(f"workload.mix={self.mix}")

    def check_alone(self, other: str) -> None:
        """Refuse num_seqs and beam if `other` says how each request samples."""
        if self.beam or self.num_seqs > 1:
            raise InputError(
                key=other,
                problem="says how each request samples",
                remedy="leave out workload.num_seqs and workload.beam",
            )


@model
class Slo:
    """Limits, all of which a request must keep to count in share_inside and goodput; null: no
    limit.
    """

    ttft_s: Annotated[PositiveSeconds | None, doc("to the first token")] = None
    tpot_s: Annotated[
        PositiveSeconds | None, doc("for each later output token, on average over the request")
    ] = None
    itl_s: Annotated[
        PositiveSeconds | None, doc("between two output tokens, so for the longest gap")
    ] = None
    e2e_s: Annotated[PositiveSeconds | None, doc("to the last token, end to end")] = None

    @property
    def limits(self) -> dict[str, float | None]:
        """The limits in s by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __bool__(self) -> bool:
        return any(limit is not None for limit in self.limits.values())


@model
class EngineConfig:
    """Options of the GPU engine's computation."""

    weights: Annotated[
        str, doc("random, or a folder in Hugging Face's format with the config's model")
    ] = "random"
    draft_weights: Annotated[
        str, doc("random, or a folder with the shape of speculation.drafter")
    ] = "random"
    device: Annotated[str, doc("cuda; cpu: everything plainly in torch, slowly")] = "cuda"
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32"], doc("type of weights and activations")
    ] = "float16"
    debug: Annotated[bool, doc("check at every step who owns which slot")] = False
    graphs: Annotated[
        Count, doc("largest batch of decodes that is captured as a CUDA graph; 0: none")
    ] = 256
    prompt_graphs: Annotated[
        Count,
        Unit("tokens"),
        doc("largest iteration with prompts whose layers are captured as CUDA graphs; 0: none"),
    ] = 2560
    launches_ahead: Annotated[
        bool,
        doc("launch an iteration while another runs, if the scheduler plans ahead"),
    ] = True
    share_prefixes: Annotated[
        bool,
        doc("decodes read the first blocks that they share once, which cost models do not expect"),
    ] = False
    warm: Annotated[
        tuple[Count, ...],
        AS_LIST,
        Unit("tokens"),
        doc("prompt batches that run once before the clock starts"),
    ] = (64, 512, 2048)
    temperature: Annotated[NonNegative, doc("of parallel samples")] = 1.0
    top_p: Annotated[Share, doc("probability of the tokens that are sampled from")] = 1.0


@model
class SoftwareConfig(SoftwareTimes):
    """The simulated system's software: its times, which cost models charge; zero unless given."""

    name: Annotated[str, doc("the system")]
    overhead_per_request_s: Annotated[Seconds, doc("more for each running request")] = 0.0
    overhead_per_token_s: Annotated[Seconds, doc("more for each scheduled token")] = 0.0
    iterations: Annotated[
        str | None,
        doc("shipped profiles of its whole iterations, which cost=auto takes if one fits"),
    ] = None


@model
class RunConfig:
    """One run: its exchangeable parts, and the values of every run."""

    model: Annotated[ModelSpec, doc("shape of the model")]
    server: Annotated[ServerConfig, doc("GPUs and their memory")]
    trace: Annotated[Part, doc("lengths and contents of requests")]
    arrivals: Annotated[Part, doc("times at which requests arrive")]
    policy: Annotated[Part, doc("memory policy")]
    scheduler: Annotated[Part, doc("decides what an iteration computes")]
    preemption: Annotated[Part, doc("victim and recovery if memory runs short")]
    cost: Annotated[Part, doc("time of an iteration")]
    beams: Annotated[Part, doc("what becomes of the sequences of a beam")]
    software: Annotated[
        SoftwareConfig | None,
        doc(
            "the simulated system; costs that charge another system's software are refused; "
            "null takes any"
        ),
    ] = None
    engine: Annotated[EngineConfig | None, doc("the GPU engine; null: the simulator")] = None
    release: Annotated[
        str | None,
        doc(
            "vLLM's release, whose rules the scheduler, the policy and the server follow; null: "
            f"{DEFAULT.number}"
        ),
    ] = None
    seed: Annotated[Count, doc("of all random streams")] = 0
    workload: Annotated[WorkloadConfig, doc("limits and sampling of requests")] = WorkloadConfig()
    swap_space_gib: Annotated[Gib, doc("host memory for each GPU (protocol)")] = 20
    slo: Annotated[Slo, doc("objectives")] = Slo()
    null_blocks: Annotated[
        Count,
        doc("blocks of the pool that no sequence ever gets; vLLM V1 keeps one, its null block"),
    ] = 0
    window_s: Annotated[
        Annotated[tuple[Seconds, Seconds], AS_LIST] | None,
        doc(
            "[from, to]: average batch and memory over this window only, and stop at its end; "
            "null: drain"
        ),
    ] = None
    stop_at_latency: Annotated[
        Positive | None,
        Unit("s/token"),
        doc("stop once the mean normalized latency is certain to exceed this; null: never"),
    ] = None
    fast_forward: Annotated[
        bool, doc("false: one event for each iteration; slower, same result")
    ] = True
    replicas: Annotated[
        PositiveCount | None,
        doc("engines on one clock behind a router; null: one engine without a router"),
    ] = None
    servers: Annotated[
        dict[str, ServerConfig] | None,
        doc(
            "servers of engines that have another than `server`, by their numbers from 1; the "
            "words gpu@2=NAME give engine 2 another GPU"
        ),
    ] = None
    router: Annotated[Part | None, doc("chooses the engine of each request; null: round_robin")] = (
        None
    )
    faults: Annotated[
        str | None,
        doc('engines that fail: "engine 2 at 60 s, back at 90 s; engine 0 at 100 s"'),
    ] = None
    prefill_replicas: Annotated[
        PositiveCount | None,
        doc("so many of the engines, the first, only prefill for the others; null: none"),
    ] = None
    handover: Annotated[
        Part | None, doc("how prefill engines hand prompts over; null: whole, over 50 GB/s")
    ] = None
    speculation: Annotated[
        Part | None, doc("the drafter of tokens that the model verifies; null: none")
    ] = None
    outputs: Annotated[
        Literal["full", "tables", "summary"],
        doc("summary: numbers alone; tables: requests and iterations too; full: charts.png too"),
    ] = "tables"

    def __post_init__(self) -> None:
        if self.window_s is not None:
            start_ps, end_ps = (round(time_s * PS) for time_s in self.window_s)
            if start_ps >= end_ps:
                shown = ", ".join(f"{time_s:g}" for time_s in self.window_s)
                raise InputError(
                    key="window_s",
                    value=f"[{shown}]",
                    problem="the end must come after the start, in seconds; or null",
                )
        check_known_shape(self.model)
        release_numbered(self.release)
        if self.replicas is None:
            self._check_alone()
        else:
            self._check_fleet(self.replicas)

    def _check_alone(self) -> None:
        """Raise InputError for values of a fleet."""
        named = [name for name in FLEET if getattr(self, name) is not None]
        if named:
            raise InputError(key=named[0], problem=ALONE, remedy="give replicas=N")
        if self.server.shared_tiers:
            key = f"server.tiers.{self.server.shared_tiers[0]}.shared"
            raise InputError(key=key, problem=ALONE, remedy=f"give replicas=N, or {key}=false")

    def _check_fleet(self, replicas: int) -> None:
        if replicas > MOST_ENGINES:
            raise InputError(
                key="replicas",
                value=replicas,
                problem=f"memory has room for {MOST_ENGINES:,} engines",
                remedy="give fewer",
            )
        if self.handover is not None and self.prefill_replicas is None:
            raise InputError(
                key="handover",
                problem="no engine prefills for others",
                remedy="give prefill_replicas=N",
            )
        if self.prefill_replicas is not None and self.prefill_replicas >= replicas:
            raise InputError(
                key="prefill_replicas",
                value=self.prefill_replicas,
                problem=f"none of {replicas} engines is left to decode",
                remedy="give fewer, or more replicas",
            )
        for number, server in (self.servers or {}).items():
            self._check_server(number, server, replicas)

    def _check_server(self, number: str, server: ServerConfig, replicas: int) -> None:
        """Raise InputError for another server of an engine that it cannot have."""
        if number not in map(str, range(1, replicas)):
            raise InputError(
                key=f"servers.{number}",
                problem=f"the engines that may have another server are 1 to {replicas - 1}",
                remedy="give one of these; `server` is that of engine 0",
            )
        if self.server.shared_tiers or server.shared_tiers:
            raise InputError(
                key=f"servers.{number}",
                problem="shared tiers are not modelled below different servers",
                remedy="give server.tiers.NAME.shared=false, or leave servers out",
            )
        is_sized = self.server.num_blocks is not None or self.null_blocks
        if is_sized and server.num_blocks is None and not server.kv_memory_gib:
            raise InputError(
                key=f"servers.{number}.num_blocks",
                problem=(
                    "the pool of `server` is given, by server.num_blocks or by a preset of "
                    f"vLLM, and that of engine {number} is not"
                ),
                remedy="give it; `testbed fits` says what vLLM would have",
            )

    def of_engine(self, number: int) -> "RunConfig":
        """This config with the server of that engine."""
        server = (self.servers or {}).get(str(number))
        return self if server is None else replace(self, server=server)

    @property
    def parts(self) -> dict[str, Part]:
        """The exchangeable parts by name."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if isinstance(value, Part)}

    @property
    def all_parts(self) -> Iterator[tuple[str, Part]]:
        """The parts, and the parts that are their parameters, by dotted key."""
        for name, part in self.parts.items():
            yield from part.nested(name)

    @classmethod
    def from_values(cls, values: Any) -> "RunConfig":
        """The config of plain values, as Hydra composes them and a run folder's config.yaml keeps
        them.
        """
        return read(cls, values)

    @property
    def values(self) -> dict[str, Any]:
        """Plain values, from which `from_values` makes an equal config if no part is an object."""
        values: dict[str, Any] = plain_values(self)
        return values


def plain_values(value: Any) -> Any:
    """A model as a mapping, a part as its mapping, a tuple as a list."""
    if isinstance(value, Part):
        return value.values
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {name: plain_values(entry) for name, entry in value.items()}
    if not hasattr(value, "__dataclass_fields__"):
        return value
    entries = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {
        name: plain_values(entry)
        for name, entry in entries
        if entry is not None or name not in OPTIONAL
    }


def defaults_of(cls: type) -> dict[str, Any]:
    """The plain values of a model's fields that need not be given."""
    values = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(cls)
    }
    defaults = {name: value for name, value in values.items() if value is not MISSING}
    return {  # a model with those too that a run folder leaves out
        name: asdict(value) if isinstance(value, Slo | WorkloadConfig) else plain_values(value)
        for name, value in defaults.items()
    }


class MixShare(NamedTuple):
    """Requests of num_seqs sequences, a beam or parallel samples, that are `weight` of all."""

    num_seqs: int
    beam: bool
    weight: float


def parse_mix(text: str) -> list[MixShare]:
    """The shares of workload.mix, such as 1:0.5,4:0.3,beam4:0.2. Raises InputError for a part that
    cannot be read, and if they do not sum to 1.
    """
    shares = []
    for part in text.split(","):
        match = SHARE.fullmatch(part.strip())
        if match is None:
            raise InputError(
                key="workload.mix",
                value=text,
                problem=f"{part.strip()!r} is no share of the requests ({MIX_HINT})",
            )
        shares.append(
            MixShare(int(match["num_seqs"]), match["beam"] is not None, float(match["weight"]))
        )
    total = sum(share.weight for share in shares)
    if not isclose(total, 1.0):
        raise InputError(
            key="workload.mix",
            value=text,
            problem=f"the shares sum to {total:g}, not to 1 ({MIX_HINT})",
        )
    return shares
