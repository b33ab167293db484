"""A profile's file and its sections of measured points (see PROFILE_FORMAT.md), and which of them
are used.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from testbed.core.errors import InputError
from testbed.core.layers import spec_of
from testbed.core.specs import GpuSpec, ModelSpec

BATCH = ("num_seqs", "total_context")
OF_KERNEL = ("block_size", "spread", *BATCH)
AXES: Mapping[
    str, tuple[tuple[str, ...], ...]
] = {  # of every section; some may have one of several
    "linear": (("num_tokens",),),
    "cache_write": (("num_tokens",),),
    "output_head": (("num_rows",),),
    "once_per_iteration": (("num_tokens",),),
    "launched_eager": (("num_tokens",),),
    "launched_graph": (("kernel", "num_seqs"),),
    "decode_attention": (BATCH, OF_KERNEL),
    "decode_attention_paper_kernel": (OF_KERNEL,),
    "contiguous_attention": (OF_KERNEL,),
    "prefill_attention": (("num_seqs", "new_tokens", "past_tokens"),),
    "window_decode_attention": (BATCH,),
    "window_prefill_attention": (("num_seqs", "new_tokens", "past_tokens"),),
    "state_decode": (("num_seqs",),),
    "state_prefill": (("num_seqs", "new_tokens", "past_tokens"),),
    "experts": (("distribution", "num_tokens"),),
    "mixed_attention": (("prefill_tokens", "past_tokens", "num_seqs", "mean_context"),),
    "unequal_lengths": (
        ("prefill_tokens", "past_tokens", "num_seqs", "mean_percent", "max_context"),
    ),
    "all_reduce": (("num_gpus", "bytes"),),
    "block_copy": (("block_size", "num_blocks"),),
    "swap": (("method", "direction", "block_size", "num_blocks"),),
    "overhead": (("what",),),
}
SHARE = "unequal_lengths"
DIFFERENCES = ("launched_eager", "launched_graph")  # may be negative
PROFILES = Path(__file__).parent / "profiles"
FORMAT = 1
BETWEEN = ("line", "next")
BALANCED = "balanced"  # tokens go to all experts alike
PS_PER_US = 10**6
DECODES = {  # the section of each decode kernel
    "paged": "decode_attention",
    "paper": "decode_attention_paper_kernel",
    "contiguous": "contiguous_attention",
}
KNOWN = {
    "kernel": tuple(DECODES),
    "spread": ("ragged", "equal"),
    "swap": ("fused", "per block"),
    "swap_waits": ("by layer", "all in"),
}
Rows = list[tuple[tuple[Any, ...], int]]
T = TypeVar("T")
INNER_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")


def check_profile(profile: Mapping[str, Any], where: object) -> None:
    """Raise InputError for the first thing in which a profile is not as PROFILE_FORMAT.md says;
    `where` names it.
    """
    spec_of(ModelSpec, profile.get("model"), f"{where}, model")
    if profile.get("gpu") is not None:
        spec_of(GpuSpec, profile["gpu"], f"{where}, gpu")
    num_gpus, sections = profile.get("num_gpus"), profile.get("sections")
    if type(num_gpus) is not int or num_gpus < 1:
        raise InputError(
            f"{where}: num_gpus is {num_gpus!r}; it must be a whole number of at least 1"
        )
    if not isinstance(profile.get("fingerprint"), Mapping):
        raise InputError(
            f"{where}: has no fingerprint, which says who measured what on which device"
        )
    check_sizes(profile.get("cuda_graph_sizes"), f"{where}, cuda_graph_sizes")
    if not isinstance(sections, Mapping) or not sections:
        raise InputError(f"{where}: has no sections (a profile has measured points)")
    for name, section in sections.items():
        check_section(name, section, f"{where}, section {name}")


def check_sizes(sizes: Any, where: str) -> None:
    """Sizes of CUDA graphs are a list of whole numbers of at least 1; None says nothing of them."""
    if sizes is None:
        return
    if not isinstance(sizes, list | tuple) or not all(
        type(size) is int and size >= 1 for size in sizes
    ):
        raise InputError(f"{where}: {sizes!r} is no list of whole numbers of at least 1")


def check_section(
    name: str, section: Any, where: str, known: Mapping[str, tuple[tuple[str, ...], ...]] = AXES
) -> None:
    """Raise InputError for the first thing in which a section is not as PROFILE_FORMAT.md says."""
    if name not in known:
        raise InputError(f"{where}: nothing reads it; a profile's sections are {', '.join(known)}")
    if not isinstance(section, Mapping) or not section.get("axes") or not section.get("points"):
        raise InputError(f"{where}: needs axes and at least one point")
    axes = tuple(section["axes"])
    if axes not in known[name]:
        raise InputError(
            f"{where}: axes are {', '.join(map(str, axes))}; must be {', '.join(known[name][0])}"
        )
    least, most = -math.inf if name in DIFFERENCES else 0.0, 1.0 if name == SHARE else math.inf
    seen = dict[tuple[Any, ...], int]()
    for number, row in enumerate(section["points"], start=1):
        if not isinstance(row, list) or len(row) <= len(axes):
            raise InputError(
                f"{where}, point {number}: {row!r} is not {len(axes)} axis values and a time"
            )
        key, value = tuple(row[: len(axes)]), row[len(axes)]
        if not all(type(one) is str or (type(one) is int and one >= 0) for one in key):
            raise InputError(
                f"{where}, point {number}: {list(key)} must be names or whole numbers of at least 0"
            )
        if (
            type(value) not in (int, float)
            or not least <= value <= most
            or not math.isfinite(value)
        ):
            within = (
                "that is finite" if least < 0 else "of at least 0" if most > 1 else "from 0 to 1"
            )
            raise InputError(f"{where}, point {number}: {value!r} is not a number {within}")
        if seen.setdefault(key, number) != number:
            raise InputError(
                f"{where}, point {number}: {list(key)} was measured in point {seen[key]} too; keep "
                f"one"
            )


def read_profile(path: str | Path) -> dict[str, Any]:
    """A profile by path, or one that ships with the package by name such as `h200-opt-13b-tp1`."""
    file, profile = measured_file(path, PROFILES, f"no profile {path}", "profile")
    check_profile(profile, file.name)
    return profile


def measured_file(
    name: str | Path, shipped: Path, culprit: str, kind: str
) -> tuple[Path, dict[str, Any]]:
    """Path and content of a file by path, or by the name of one that ships; `culprit` and `kind`
    are for messages.
    """
    file = next((path for path in (Path(name), shipped / f"{name}.json") if path.is_file()), None)
    if file is None:
        known = ", ".join(sorted(path.stem for path in shipped.glob("*.json")))
        raise InputError(f"{culprit}: neither a file nor one of {known}")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not a {kind}, which is a JSON file ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{file}: not a {kind}, which is a JSON object with 'format': {FORMAT}")
    if found.get("format") != FORMAT:
        raise InputError(
            f"{file.name}: {kind} format {found.get('format')}, this version reads {FORMAT}"
        )
    return file, found


def dump(profile: Mapping[str, Any]) -> str:
    text = json.dumps(profile, indent=1)
    return INNER_LIST.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"


def has(profile: Mapping[str, Any], section: str) -> bool:
    return section in profile["sections"]


def rows(profile: Mapping[str, Any], section: str) -> Rows:
    """A section's points as (key, median in picoseconds)."""
    if not has(profile, section):
        name, there = profile["model"]["name"], ", ".join(profile["sections"])
        raise InputError(
            f"the profile of {name} has no section {section}, which this run needs; it has {there}"
        )
    body = profile["sections"][section]
    width = len(body["axes"])
    return [(tuple(row[:width]), round(row[width] * PS_PER_US)) for row in body["points"]]


def included(profile: Mapping[str, Any], section: str) -> bool:
    """Whether another section says that its times hold this one's already."""
    return any(section in body.get("includes", ()) for body in profile["sections"].values())


def jumps(profile: Mapping[str, Any], section: str) -> bool:
    """Whether a section's times jump from one measured count to the next, instead of going in a
    line between them.
    """
    between = profile["sections"].get(section, {}).get("between", "line")
    if between not in BETWEEN:
        name = profile["model"]["name"]
        raise InputError(
            f"section {section} of {name}: between is {between!r}, not one of {', '.join(BETWEEN)}"
        )
    return bool(between == "next")


def table(
    profile: Mapping[str, Any], section: str, make: Callable[[Rows], T]
) -> T | Callable[..., Any]:
    """The table of a section; of one that is not there, a stand-in that raises InputError when it
    is used.
    """
    if has(profile, section):
        return make(rows(profile, section))
    return lambda *requested: rows(profile, section)


@dataclass(frozen=True, slots=True)
class Choices:
    """Which of the measured alternatives is used, in seconds; experiments/conf/cost/profile.yaml
    explains every value.

    kernel: "paged" (ours), "paper" (the paper's design) or "contiguous". swap_waits: "by layer"
    (see with_swaps), or "all in": no layer runs before everything has come in, and what goes out
    hides behind computing. overhead_s: of an iteration (one graph launch, inputs in, tokens out),
    more for each GPU, whose worker gets its input in turn, for each running request, on each GPU
    too, token and sequence; None is the profile's. software: the system whose times these are, None
    where they are the profile's or the user's own. parallel_layer_s: by number of GPUs, launches
    that wait for the slowest; one GPU needs no entry. repeated_read: of a shared token, as a share
    of a first read (kernels/results/h200-shared-reads.csv: 0.42 with our kernel, 0.28 with the
    paper's). extra_s: of what a policy counts by name.
    """

    block_size: int = 16
    kernel: str = "paged"
    spread: str = "ragged"
    swap: str = "fused"
    swap_waits: str = "by layer"
    overhead_s: float | None = None
    overhead_per_worker_s: float = 0.0
    overhead_per_request_s: float | None = None
    overhead_per_token_s: float | None = None
    overhead_per_input_s: float = 0.0
    overhead_per_sequence_s: float = 0.0
    sequences_per_fork: float = 0.0
    software: str | None = None
    parallel_layer_s: Mapping[int, float] = field(default_factory=dict)
    attention_scale: float = 1.0
    repeated_read: float = 0.5
    experts: str = BALANCED
    extra_s: Mapping[str, float] = field(default_factory=dict)
    cuda_graph_sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name, known in KNOWN.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name}: {getattr(self, name)} is not one of {', '.join(known)}")
        check_sizes(self.cuda_graph_sizes, "cuda_graph_sizes")

    @property
    def decode_section(self) -> str:
        return DECODES[self.kernel]
