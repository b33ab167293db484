"""Rank 0's side of tensor parallelism: it sends the workers the commands that it performs on its
own device. One message an iteration.
"""

import pickle
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from weakref import ref

import torch
from torch import Tensor

from testbed.core.slots import Ops, Transfer
from testbed.engine.wall_clock import WallClock
from testbed.kernels.engine.graphs import Captures
from testbed.kernels.engine.layout import Blocks, Extents, Ints
from testbed.kernels.engine.on_device import Forward, Graphs
from testbed.kernels.engine.parallel.message import (
    Begin,
    Build,
    Command,
    Compiler,
    End,
    Erase,
    Land,
    Perform,
)
from testbed.kernels.engine.parallel.ranks import ONE_RANK, OneRank, Ranks
from testbed.kernels.engine.pool_moves import Moves
from testbed.kernels.engine.ragged import Ragged
from testbed.kernels.engine.records import SwapTime
from testbed.memory.policy import PoolSpec

Erasing = Callable[[Ints], None]


class Alone:
    """An engine without workers: no message is sent."""

    @property
    def ranks(self) -> OneRank:
        """Collectives of the forward pass with the workers."""
        return ONE_RANK

    def guard(self) -> AbstractContextManager[None]:
        """Around everything that waits for the workers, also by a device that waits for theirs."""
        return nullcontext()

    def device_wait(self) -> AbstractContextManager[None]:
        """Around a wait for the device that takes an iteration at most."""
        return nullcontext()

    def watched_by(self, clock: WallClock) -> None:
        """Raise in the loop of this clock, and in no other, when a worker fails."""

    def build(self, pool: PoolSpec, layout: Blocks, graphs: Graphs, *, debug: bool) -> Captures:
        """The workers make their parts on the device; rank 0 captures its graphs after this, into
        the result. Captures of an earlier engine are released.
        """
        return Captures()

    def moves(self, moves: Moves) -> Moves:
        """Moves that the workers perform too."""
        return moves

    def erasing(self, erase: Erasing) -> Erasing:
        """An `erase` that the workers do too."""
        return erase

    def forward(self, forward: Forward, kept: Container[int], *, is_eager: bool) -> Forward:
        """A forward pass in which the workers take part. kept: see Compiler."""
        return forward

    def close(self) -> None:
        """End the workers."""


ALONE = Alone()


class Guard:
    """Watches nothing: what waits for workers, waits. See Watch."""

    def waiting(self, *, for_device: bool = False) -> AbstractContextManager[None]:
        """Around what waits for the workers; for_device: what takes an iteration at most."""
        return nullcontext()

    def on_failure(self, call: Callable[[], object]) -> None:
        """Call this, and no call that was given before, in another thread when a worker has
        failed.
        """

    def check(self) -> None:
        """Raise if a worker has failed."""

    def end(self) -> None:
        """End the workers, which have the command."""


class Leader(Alone):
    """Rank 0 among workers, one connection each."""

    def __init__(self, connections: Sequence[Connection], ranks: Ranks, guard: Guard) -> None:
        self._connections = connections
        self._ranks = ranks
        self._guard = guard
        self._commands: list[Command] = []
        self._compiler = Compiler()
        self._captures = Captures()

    @property
    def ranks(self) -> OneRank:
        return self._ranks

    def guard(self) -> AbstractContextManager[None]:
        return self._guard.waiting()

    def device_wait(self) -> AbstractContextManager[None]:
        return self._guard.waiting(for_device=True)

    def watched_by(self, clock: WallClock) -> None:
        engines_clock = ref(clock)  # a reference to an engine's clock keeps its pools

        def send_failure() -> None:
            if (alive := engines_clock()) is not None:
                alive.post(self._guard.check)

        self._guard.on_failure(send_failure)

    def enqueue(self, command: Command) -> None:
        """Add a command to the next message."""
        self._commands.append(command)

    def send(self) -> None:
        """Send the commands so far as one message, if there are any."""
        if not self._commands:
            return
        message = pickle.dumps(self._commands, pickle.HIGHEST_PROTOCOL)
        self._commands = []
        with self._guard.waiting():
            for connection in self._connections:
                connection.send_bytes(message)

    def build(self, pool: PoolSpec, layout: Blocks, graphs: Graphs, *, debug: bool) -> Captures:
        self._compiler = Compiler()
        self._captures.release()
        self.enqueue(Build(pool, layout, graphs, debug))
        self.send()
        return self._captures

    def moves(self, moves: Moves) -> Moves:
        return LeadingMoves(moves, self)

    def erasing(self, erase: Erasing) -> Erasing:
        def on_all_ranks(slots: Ints) -> None:
            self.enqueue(Erase(slots))
            erase(slots)

        return on_all_ranks

    def forward(self, forward: Forward, kept: Container[int], *, is_eager: bool) -> Forward:
        def on_all_ranks(batch: Ragged) -> Tensor:
            self.enqueue(self._compiler.compute(batch, kept, is_eager=is_eager))
            self.send()
            with self._guard.waiting():
                if batch.late is not None:
                    with torch.inference_mode():
                        self._ranks.collectives.share(batch.late.tokens)
                return forward(batch)

        return on_all_ranks

    def close(self) -> None:
        try:
            self.enqueue(End())
            self.send()
            with self.device_wait():
                self._ranks.collectives.finish()
        finally:
            self._guard.end()


class LeadingMoves(Moves):
    """Rank 0's moves, which the workers perform too, each on its own pools."""

    def __init__(self, own: Moves, leader: Leader) -> None:
        super().__init__(own.pools, own.layout, own.live)
        self.own = own
        self.leader = leader
        self.pending = own.pending

    def perform(self, ops: Ops) -> None:
        live = self.live() if isinstance(self.layout, Extents) and ops.copies else []
        self.leader.enqueue(Perform(ops, live))
        self.own.perform(ops)

    def begin(self, transfers: Iterable[Transfer]) -> None:
        begun = list(transfers)
        if begun:
            self.leader.enqueue(Begin(begun))
        self.own.begin(begun)

    def land(self, move_id: int) -> None:
        self.leader.enqueue(Land(move_id))
        self.own.land(move_id)

    def flush(self) -> None:
        self.leader.send()

    def swap_times(self) -> list[SwapTime]:
        """The swaps of rank 0."""
        return self.own.swap_times()
