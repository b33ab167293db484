"""A worker's loop: does on its own shard what the messages of rank 0 say."""

import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection

from testbed.core.sequence import Sequence
from testbed.core.slots import Extent
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.device_memory import free
from testbed.kernels.engine.graphs import Captures
from testbed.kernels.engine.layout import Blocks, Place
from testbed.kernels.engine.on_device import (
    Forward,
    Graphs,
    OnDevice,
    eager,
    on_device,
    with_graphs,
)
from testbed.kernels.engine.parallel.message import Command
from testbed.kernels.engine.parallel.ranks import Ranks
from testbed.kernels.engine.weights import Weights
from testbed.memory.policy import PoolSpec


class Follower:
    """A worker with the weights of its shard. The first command builds the rest.

    arch: the shard's; live: the tables of the sequences if slots lie in extents; members: the
    sequences of the messages so far, and their tables.
    """

    device: OnDevice
    forward: Forward
    eager: Forward

    def __init__(self, arch: Architecture, weights: Weights, ranks: Ranks) -> None:
        self.arch = arch
        self.weights = weights
        self.ranks = ranks
        self.live: list[list[Extent]] = []
        self.members: dict[int, tuple[Sequence, Place]] = {}
        self.captures = Captures()
        self.has_ended = False

    def build(self, pool: PoolSpec, layout: Blocks, graphs: Graphs) -> None:
        """Make the parts on the device, and capture the graphs; those before leave first."""
        self.captures.release()
        if hasattr(self, "device"):
            del self.device, self.eager, self.forward
            free()
        parts = on_device(self.arch, self.weights, pool, layout, lambda: self.live, self.ranks)
        self.device = parts
        self.eager = eager(parts.network, parts.attention)
        self.forward = with_graphs(
            parts.network, parts.attention, graphs, self.captures, self.eager
        )

    def run(self, connection: Connection, done: Callable[[], None] = lambda: None) -> None:
        """Follow the messages until the last. done: called after each."""
        while not self.has_ended:
            commands: list[Command] = pickle.loads(connection.recv_bytes())
            for command in commands:
                command.apply(self)
            done()
