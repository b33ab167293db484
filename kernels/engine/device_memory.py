"""Memory of the GPU that nothing refers to any more, and of the host that is free."""

import gc
import re
from pathlib import Path

import torch

MEMORY_INFO = Path("/proc/meminfo")


def free() -> None:
    """Give the GPU back what is unreferenced: an engine's parts reference each other, and GiBs of
    pools. Before anything else is allocated: a tensor in the place of a pool keeps all of it.
    """
    gc.collect()
    torch.cuda.empty_cache()


def free_of_host() -> int | None:
    """Bytes of the host's memory that can be taken; None if the system does not say."""
    try:
        found = re.search(r"MemAvailable: +(\d+) kB", MEMORY_INFO.read_text(encoding="ascii"))
    except OSError:
        return None
    return int(found[1]) << 10 if found else None
