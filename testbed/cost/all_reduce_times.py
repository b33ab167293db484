"""The time that tensor parallelism adds to a layer: all-reduces, measured or of a ring over the
links.
"""

from collections.abc import Callable, Mapping
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.specs import ServerSpec
from testbed.cost.interpolation import Knots
from testbed.cost.sections import rows


def all_reduce(profile: Mapping[str, Any], server: ServerSpec) -> Callable[[int], int]:
    """Picoseconds of one all-reduce over several GPUs by its bytes.

    They are measured, or scaled by (n - 1) / n from another number of GPUs, or those of a ring
    over the data sheet's links without latency.
    """
    wanted = server.num_gpus
    points = rows(profile, "all_reduce") if "all_reduce" in profile["sections"] else []
    if points:
        degrees = {key[0] for key, _ in points}
        measured = max((degree for degree in degrees if degree <= wanted), default=min(degrees))
        return Knots(
            (key[1], ps * (wanted - 1) * measured // (wanted * (measured - 1)))
            for key, ps in points
            if key[0] == measured
        )
    ps_per_byte = 2 * (wanted - 1) / wanted / server.gpu.link_bandwidth * PS
    return lambda num_bytes: round(num_bytes * ps_per_byte)


def ring_stand_in(server: ServerSpec) -> str:
    """The origin of all-reduces that were not measured, for the reader of a result."""
    gpu = server.gpu
    origin = f"not measured: a ring over {gpu.link_bandwidth / 1e9:g} GB/s, without latency"
    if gpu.link_bandwidth <= gpu.host_bandwidth:
        origin += "; over PCIe that is too fast (testbed import profile --help says what to do)"
    return origin


def layer_s(by_degree: Mapping[int, float], num_gpus: int) -> float:
    """Seconds that tensor parallelism over num_gpus GPUs adds to a layer.

    An empty table means "not measured": 0. Raises InputError if the table lacks this number.
    """
    if num_gpus == 1 or not by_degree:
        return by_degree.get(1, 0.0)
    if num_gpus not in by_degree:
        degrees = ", ".join(map(str, by_degree))
        raise InputError(
            key="parallel_layer_s",
            problem=f"has no cost for {num_gpus} GPUs",
            remedy=f"it has {degrees}; add one",
        )
    return by_degree[num_gpus]
