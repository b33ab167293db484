"""A profile's file and its sections of measured points (see PROFILE_FORMAT.md), and which of them
are used.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, TypeVar

from testbed.core.config_model import model, read
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.core.units import Positive, PositiveCount, PositiveTokens, Seconds, Share

BATCH = ("num_seqs", "total_context")
USUAL_BLOCK = 16  # tokens
OF_KERNEL = ("block_size", "spread", *BATCH)
AxesOf = Mapping[str, tuple[tuple[str, ...], ...]]  # the possible axes of each section
AXES: AxesOf = {
    "linear": (("num_tokens",),),
    "cache_write": (("num_tokens",),),
    "output_head": (("num_rows",),),
    "once_per_iteration": (("num_tokens",),),
    "launched_eager": (("num_tokens",),),
    "launched_graph": (("kernel", "num_seqs"),),
    "launch_prompts": (("part", "num_tokens", "num_seqs"),),
    "launch_decodes": (("part", "num_seqs"),),
    "launch_unseen": (("num_tokens",),),
    "launch_slowness": (("moment_ms",),),
    "decodes_beside_prompts": (("num_tokens", "num_seqs"),),
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
    "front_end": (("part", "load"),),
}
SHARE = "unequal_lengths"
DIFFERENCES = ("launched_eager", "launched_graph")  # may be negative
SYSTEM = "system"  # in the fingerprint of whole iterations: the system that was measured
THIS_ENGINE = "this project's engine"
PROFILES = Path(__file__).parent / "profiles"
FORMAT = 1
# Between measured counts times go in a line, or jump to the next one's
LINE, NEXT = "line", "next"
BALANCED = "balanced"  # tokens go to all experts alike
PS_PER_US = 10**6
Kernel = Literal["paged", "paper", "contiguous"]
DECODES: Mapping[Kernel, str] = {  # the section of each decode kernel
    "paged": "decode_attention",
    "paper": "decode_attention_paper_kernel",
    "contiguous": "contiguous_attention",
}
Spread = Literal["ragged", "equal"]  # of the lengths of a batch
Rows = list[tuple[tuple[Any, ...], int]]
T = TypeVar("T")
INNER_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")


def check_profile(profile: Mapping[str, Any], where: str | Path) -> None:
    """Raise InputError for the first defect of a profile by PROFILE_FORMAT.md; `where` names the
    profile.
    """
    read(ModelSpec, profile.get("model"), f"{where}, model")
    if profile.get("gpu") is not None:
        read(GpuSpec, profile["gpu"], f"{where}, gpu")
    num_gpus = profile.get("num_gpus")
    sections = profile.get("sections")
    if type(num_gpus) is not int or num_gpus < 1:
        raise InputError(
            key=f"{where}: num_gpus",
            value=repr(num_gpus),
            problem="must be a whole number of at least 1",
        )
    if not isinstance(profile.get("fingerprint"), Mapping):
        raise InputError(
            key=where, problem="has no fingerprint, which says who measured what on which device"
        )
    check_sizes(profile.get("cuda_graph_sizes"), f"{where}, cuda_graph_sizes")
    if not isinstance(sections, Mapping) or not sections:
        raise InputError(key=where, problem="has no sections (a profile has measured points)")
    for name, section in sections.items():
        check_section(name, section, f"{where}, section {name}")


def check_sizes(sizes: Any, where: str) -> None:
    """Sizes of CUDA graphs are a list of whole numbers of at least 1; None says nothing of them."""
    if sizes is None:
        return
    if not isinstance(sizes, list | tuple) or not all(
        type(size) is int and size >= 1 for size in sizes
    ):
        raise InputError(key=where, problem=f"{sizes!r} is no list of whole numbers of at least 1")


def check_section(name: str, section: Any, where: str, axes_of: AxesOf = AXES) -> None:
    """Raise InputError for the first defect of a section by PROFILE_FORMAT.md; `where` names the
    section.
    """
    if name not in axes_of:
        names = ", ".join(axes_of)
        raise InputError(key=where, problem=f"nothing reads it; a profile's sections are {names}")
    if not isinstance(section, Mapping) or not section.get("axes") or not section.get("points"):
        raise InputError(key=where, problem="needs axes and at least one point")
    between = section.get("between", LINE)
    if between not in (LINE, NEXT):
        raise InputError(key=where, problem=f"between is {between!r}, not one of {LINE}, {NEXT}")
    axes = tuple(section["axes"])
    if axes not in axes_of[name]:
        raise InputError(
            key=where,
            problem=f"axes are {', '.join(map(str, axes))}; must be {', '.join(axes_of[name][0])}",
        )
    number_of_key = dict[tuple[Any, ...], int]()
    for number, row in enumerate(section["points"], start=1):
        point = f"{where}, point {number}"
        if not isinstance(row, list) or len(row) <= len(axes):
            raise InputError(
                key=point, problem=f"{row!r} is not {len(axes)} axis values and a time"
            )
        key = tuple(row[: len(axes)])
        if not all(map(_is_axis_value, key)):
            raise InputError(
                key=point, problem=f"{list(key)} must be names or whole numbers of at least 0"
            )
        _check_value(name, row[len(axes)], point)
        if key in number_of_key:
            raise InputError(
                key=point,
                problem=f"{list(key)} was measured in point {number_of_key[key]} too",
                remedy="keep one",
            )
        number_of_key[key] = number


def _is_axis_value(value: Any) -> bool:
    return type(value) is str or (type(value) is int and value >= 0)


def _check_value(section: str, value: Any, point: str) -> None:
    """Raise InputError unless a time is finite and at least 0, a difference of times finite, and a
    share from 0 to 1.
    """
    if section in DIFFERENCES:
        least, most, allowed = -math.inf, math.inf, "that is finite"
    elif section == SHARE:
        least, most, allowed = 0.0, 1.0, "from 0 to 1"
    else:
        least, most, allowed = 0.0, math.inf, "of at least 0"
    is_number = type(value) in (int, float) and math.isfinite(value)
    if not is_number or not least <= value <= most:
        raise InputError(key=point, problem=f"{value!r} is not a number {allowed}")


def read_profile(path: str | Path) -> dict[str, Any]:
    """A profile by path, or one that ships with the package by name such as `h200-opt-13b-tp1`.

    Raises InputError for a defect in a file of the user's; a test checks those that ship.
    """
    file, profile = measured_file(path, PROFILES, f"no profile {path}", "profile")
    if not file.is_relative_to(PROFILES):
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
        names = ", ".join(sorted(path.stem for path in shipped.glob("*.json")))
        raise InputError(key=culprit, problem=f"neither a file nor one of {names}")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            key=file, problem=f"not a {kind}, which is a JSON file ({error})"
        ) from error
    if not isinstance(content, dict):
        raise InputError(
            key=file, problem=f"not a {kind}, which is a JSON object with 'format': {FORMAT}"
        )
    if content.get("format") != FORMAT:
        raise InputError(
            key=file.name,
            problem=f"{kind} format {content.get('format')}, this version reads {FORMAT}",
        )
    return file, content


def dump(profile: Mapping[str, Any]) -> str:
    text = json.dumps(profile, indent=1)
    return INNER_LIST.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"


def rows(profile: Mapping[str, Any], section: str) -> Rows:
    """A section's points as (key, median in picoseconds)."""
    if section not in profile["sections"]:
        name, names = profile["model"]["name"], ", ".join(profile["sections"])
        of_kernels = "; cost.iterations=null: times of kernels"
        raise InputError(
            key=f"the profile of {name}",
            problem=f"has no section {section}, which this run needs",
            remedy=f"it has {names}{of_kernels if SYSTEM in profile['fingerprint'] else ''}",
        )
    body = profile["sections"][section]
    width = len(body["axes"])
    return [(tuple(row[:width]), round(row[width] * PS_PER_US)) for row in body["points"]]


def table(
    profile: Mapping[str, Any], section: str, make: Callable[[Rows], T]
) -> T | Callable[..., Any]:
    """The table of a section; of one that is not there, a stand-in that raises InputError when it
    is used.
    """
    if section in profile["sections"]:
        return make(rows(profile, section))
    return lambda *requested: rows(profile, section)


@model
class Choices:
    """The measured alternative that is used, in seconds; experiments/conf/cost/profile.yaml
    explains every value.

    block_size: of the measured decodes; None: that of the policy (run/machine.py), USUAL_BLOCK
    if it has none. kernel: "paged" (ours), "paper" (the paper's design) or "contiguous".
    swap_waits: "by layer" (see with_swaps), or "all in": no layer runs before everything has
    come in, and what goes out hides behind computing. parallel_layer_s: by number of GPUs,
    launches that wait for the slowest; one GPU needs no entry. repeated_read: of a shared
    token, as a share of a first read (kernels/results/h200-shared-reads.csv: 0.42 with our
    kernel, 0.28 with the paper's).
    """

    block_size: PositiveTokens | None = None
    kernel: Kernel = "paged"
    spread: Spread = "ragged"
    swap: Literal["fused", "per block"] = "fused"
    swap_waits: Literal["by layer", "all in"] = "by layer"
    parallel_layer_s: Mapping[int, Seconds] = field(default_factory=dict)
    attention_scale: Positive = 1.0
    repeated_read: Share = 0.42
    experts: str = BALANCED
    cuda_graph_sizes: Sequence[PositiveCount] | None = None
