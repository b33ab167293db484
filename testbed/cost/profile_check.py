"""What every profile must have: a model, known sections with their axes, points that are numbers."""

import math
from collections.abc import Mapping
from typing import Any

from testbed.core.errors import InputError
from testbed.core.layers import spec_of
from testbed.core.renamed import advice, new_name
from testbed.core.specs import GpuSpec, ModelSpec

BATCH = ("num_seqs", "total_context")
OF_KERNEL = ("block_size", "spread", *BATCH)
AXES: Mapping[str, tuple[tuple[str, ...], ...]] = {  # of every section; some may have one of several
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
    "unequal_lengths": (("prefill_tokens", "past_tokens", "num_seqs", "mean_percent", "max_context"),),
    "all_reduce": (("num_gpus", "bytes"),),
    "block_copy": (("block_size", "num_blocks"),),
    "swap": (("method", "direction", "block_size", "num_blocks"),),
    "overhead": (("what",),),
}
SHARE = "unequal_lengths"
DIFFERENCES = ("launched_eager", "launched_graph")  # may be negative


def check_profile(profile: Mapping[str, Any], where: object) -> None:
    """Raise InputError for the first thing in which a profile is not as PROFILE_FORMAT.md says; `where` names it."""
    spec_of(ModelSpec, profile.get("model"), f"{where}, model")
    if profile.get("gpu") is not None:
        spec_of(GpuSpec, profile["gpu"], f"{where}, gpu")
    num_gpus, sections = profile.get("num_gpus"), profile.get("sections")
    if type(num_gpus) is not int or num_gpus < 1:
        raise InputError(f"{where}: num_gpus is {num_gpus!r}; it must be a whole number of at least 1")
    if not isinstance(profile.get("fingerprint"), Mapping):
        raise InputError(f"{where}: has no fingerprint, which says who measured what on which device")
    check_sizes(profile.get("cuda_graph_sizes"), f"{where}, cuda_graph_sizes")
    if not isinstance(sections, Mapping) or not sections:
        raise InputError(f"{where}: has no sections (a profile has measured points)")
    for name, section in sections.items():
        check_section(name, section, f"{where}, section {name}")


def check_sizes(sizes: Any, where: str) -> None:
    """Sizes of CUDA graphs are a list of whole numbers of at least 1; None says nothing of them."""
    if sizes is None:
        return
    if not isinstance(sizes, list | tuple) or not all(type(size) is int and size >= 1 for size in sizes):
        raise InputError(f"{where}: {sizes!r} is no list of whole numbers of at least 1")


def check_section(name: str, section: Any, where: str, known: Mapping[str, tuple[tuple[str, ...], ...]] = AXES) -> None:
    """Raise InputError for the first thing in which a section is not as PROFILE_FORMAT.md says."""
    if new := new_name("section", name):
        raise InputError(f"{where}: it {advice(new)}")
    if name not in known:
        raise InputError(f"{where}: nothing reads it; a profile's sections are {', '.join(known)}")
    if not isinstance(section, Mapping) or not section.get("axes") or not section.get("points"):
        raise InputError(f"{where}: needs axes and at least one point")
    axes = tuple(section["axes"])
    for old in axes:
        if new := new_name("axis", old):
            raise InputError(f"{where}: axis {old} {advice(new)}")
    if axes not in known[name]:
        raise InputError(f"{where}: axes are {', '.join(map(str, axes))}; must be {', '.join(known[name][0])}")
    least, most = -math.inf if name in DIFFERENCES else 0.0, 1.0 if name == SHARE else math.inf
    seen = dict[tuple[Any, ...], int]()
    for number, row in enumerate(section["points"], start=1):
        if not isinstance(row, list) or len(row) <= len(axes):
            raise InputError(f"{where}, point {number}: {row!r} is not {len(axes)} axis values and a time")
        key, value = tuple(row[: len(axes)]), row[len(axes)]
        if not all(type(one) is str or (type(one) is int and one >= 0) for one in key):
            raise InputError(f"{where}, point {number}: {list(key)} must be names or whole numbers of at least 0")
        if type(value) not in (int, float) or not least <= value <= most or not math.isfinite(value):
            raise InputError(f"{where}, point {number}: {value!r} is not a number {_range(least, most)}")
        if seen.setdefault(key, number) != number:
            raise InputError(f"{where}, point {number}: {list(key)} was measured in point {seen[key]} too; keep one")


def _range(least: float, most: float) -> str:
    return "that is finite" if least < 0 else "of at least 0" if most > 1 else "from 0 to 1"
