"""Times of transfers over a GPU's link by extents, bytes and block size, as `testbed gpu measure
transfers` measured them.

They belong to the GPU and its host, not to a model: `server.gpu.transfers` names their file; swaps
and tiers use it.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.slots import ceil_div
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.interpolation import Knots, surface
from testbed.cost.model import Moved
from testbed.cost.sections import Rows, check_section, measured_file, rows

HARDWARE = Path(__file__).parent / "hardware"
SECTION = "transfers"
AXES = ("method", "way", "num_extents", "extent_bytes", "block_bytes")
OUT = "out"  # the ways of a transfer, seen from the GPU
INTO = "in"
COPIES = "copies"  # the methods: a call per piece, a kernel that gathers all extents for the copy
GATHER = "gather"  # engine, or one that reads and writes the host's memory by itself
KERNEL = "kernel"


class LinkTimes:
    """Picoseconds of a transfer, linear in extents, their bytes and the block size; level below the
    smallest points.
    """

    def __init__(self, points: Rows) -> None:
        measured = dict[tuple[str, str], list[tuple[tuple[int, int, int], int]]]()
        for (method, way, num_extents, extent_bytes, block_bytes), ps in points:
            sizes = block_bytes, extent_bytes, num_extents
            measured.setdefault((method, way), []).append((sizes, ps))
        self._times = {kind: surface(times, 2, Knots) for kind, times in measured.items()}

    def has(self, method: str, way: str) -> bool:
        """True if transfers this way were measured by this method."""
        return (method, way) in self._times

    def __call__(
        self, method: str, way: str, num_extents: int, num_bytes: int, block_bytes: int
    ) -> int:
        """Time of num_bytes in num_extents extents, gathered from blocks of block_bytes (other
        methods: 0).
        """
        if not self.has(method, way):
            measured = ", ".join(" ".join(kind) for kind in self._times)
            raise InputError(
                key=f"transfers {way} by {method}",
                problem=f"were not measured (the file has {measured})",
            )
        extent_bytes = ceil_div(num_bytes, num_extents)
        return self._times[method, way](block_bytes, extent_bytes, num_extents)


class MeasuredLink:
    """Picoseconds of each GPU's share of moved K and V on its link, all GPUs at the same time.

    Not modelled: that the GPUs of a host share its memory, and that transfers slow down what runs
    meanwhile. plane_bytes: bytes of a slot's K (or V) in one layer.
    """

    def __init__(self, model: ModelSpec, num_gpus: int, times: LinkTimes) -> None:
        self._slot_bytes = model.kv_bytes_on(num_gpus) / num_gpus
        self._planes = (1 if model.latent else 2) * model.num_attention_layers
        self.plane_bytes = round(self._slot_bytes / self._planes)
        self.times = times

    def copied(self, way: str, moves: Iterable[Moved]) -> int:
        """Picoseconds of these moves by the copy engine, a call for each plane of a transfer."""
        return self.by(COPIES, way, moves)

    def moved(self, way: str, moves: Iterable[Moved]) -> int:
        """Picoseconds of these moves as this project's engine makes them: by its kernel, or
        gathered if the file has no times of the kernel.
        """
        return self.by(KERNEL if self.times.has(KERNEL, way) else GATHER, way, moves)

    def by(self, method: str, way: str, moves: Iterable[Moved]) -> int:
        """Picoseconds of these moves by one method. Gathered, each run of slots below the device is
        an extent; otherwise each plane of a transfer is one.
        """
        slots = transfers = extents = 0
        for move in moves:
            slots += move.length * move.num_transfers
            transfers += move.num_transfers
            extents += move.extents
        if not slots:
            return 0
        num_bytes = round(slots * self._slot_bytes)
        pieces = transfers * self._planes
        if method == GATHER:
            return self.times(method, way, extents, num_bytes, num_bytes // pieces)
        return self.times(method, way, pieces, num_bytes, 0)


def measured_link(model: ModelSpec, server: ServerSpec) -> MeasuredLink:
    """The link of a server whose GPU names measured transfers."""
    of_gpu = link_times if Path(str(server.gpu.transfers)).is_file() else shipped_link_times
    return MeasuredLink(model, server.num_gpus, of_gpu(server.gpu))


def link_times(gpu: GpuSpec) -> LinkTimes:
    """The times in the file that a GPU names."""
    return LinkTimes(rows(read_transfers(gpu), SECTION))


# Without files of the user's, which alone may change: read once for the runs of a process
shipped_link_times = lru_cache(maxsize=64)(link_times)


def read_transfers(gpu: GpuSpec) -> Mapping[str, Any]:
    """The file that a GPU names, by path or by the name of one that ships; InputError if it is of
    another GPU.
    """
    name = str(gpu.transfers)
    kind = "file of `testbed gpu measure transfers`"
    file, content = measured_file(name, HARDWARE, f"server.gpu.transfers={name}", kind)
    try:
        device = content["fingerprint"]["device"]
        section = content["sections"][SECTION]
    except (KeyError, TypeError) as error:
        raise InputError(key=file, problem=f"not a {kind} ({error!r})") from error
    check_section(SECTION, section, f"{file}, section {SECTION}", {SECTION: (AXES,)})
    if gpu.device != device:
        raise InputError(
            key="server.gpu.transfers",
            value=name,
            problem=(
                f"measured on {device}, the server has {gpu.name} ({gpu.device}); "
                "server.gpu.transfers=null takes its data sheet"
            ),
        )
    return content
