"""The compute capability of a GPU by our name, which decides vLLM's attention backends."""

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec

# NVIDIA's "CUDA GPU compute capability" page, by the beginning of a name.
CAPABILITIES = {
    "a100": (8, 0),
    "a10": (8, 6),
    "a10g": (8, 6),
    "a40": (8, 6),
    "b200": (10, 0),
    "b300": (10, 3),
    "gh200": (9, 0),
    "h100": (9, 0),
    "h200": (9, 0),
    "l4": (8, 9),
    "l40s": (8, 9),
    "rtx-3090": (8, 6),
    "rtx-4090": (8, 9),
    "rtx-5090": (12, 0),
    "rtx-a6000": (8, 6),
    "rtx-pro-6000": (12, 0),
    "t4": (7, 5),
    "v100": (7, 0),
}


def capability_of(gpu: GpuSpec) -> tuple[int, int]:
    """The compute capability. Raises InputError for a GPU that is not known."""
    known = known_capability(gpu)
    if known is None:
        raise InputError(
            key=f"gpu {gpu.name}",
            problem=(
                "its compute capability is not known, and vLLM's attention backend follows from it"
            ),
            remedy=f"name it after one of {', '.join(CAPABILITIES)}",
        )
    return known


def known_capability(gpu: GpuSpec) -> tuple[int, int] | None:
    """The compute capability of a GPU that is named after a known one, or None."""
    name = gpu.name
    while name and name not in CAPABILITIES:
        name = name.rpartition("-")[0]
    return CAPABILITIES.get(name)
