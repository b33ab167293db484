"""Four policies with one fault each, which the engine's debug mode must detect."""

import torch

from testbed.core.request import Request
from testbed.core.slots import HOST, Copy, Grant, Move, Ops
from testbed.core.specs import ModelSpec
from testbed.engine.wall_clock import StepClock
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.random_weights import random_weights
from testbed.kernels.engine.sampler import TopP
from testbed.kernels.engine.served_run import Options, assemble
from testbed.kernels.engine.slot_checker import SlotError
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Swap


class ForgottenCopy(Paged):
    """Gives a writer a new block without copying the shared block's tokens."""

    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        return answer._replace(ops=Ops()) if isinstance(answer, Grant) else answer


class DoubleOwner(Paged):
    """Puts the first block of the previous sequence into the next sequence's table too."""

    def table(self, seq):
        table = super().table(seq)
        others = [i for i in self._tables.held if i < seq.seq_id]
        return [super().table(self._tables.held[others[0]].seq)[0], *table[1:]] if others else table


class WritesShared(Paged):
    """Lets several sequences write in place to a block that they share."""

    def extend(self, batch, num_tokens):
        index = batch.index(self, self._index)
        index.tails.clear()
        return super().extend(batch, num_tokens)


class WrongSwapIn(Paged):
    """Exchanges the first two blocks at swap-in."""

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        if tier == HOST or not isinstance(answer, Grant):
            return answer
        (move,) = answer.ops.moves
        first, second, *rest = move.copies
        swapped = (
            Copy(first.src, second.dst, first.length),
            Copy(second.src, first.dst, first.length),
        )
        return Grant(0, Ops(moves=(Move(move.source, move.target, (*swapped, *rest)),)))


FAULTS: dict[type[Paged], int] = {ForgottenCopy: 2, DoubleOwner: 1, WritesShared: 2, WrongSwapIn: 1}
SHAPE = ModelSpec("tiny", 2, 128, 2, 2, 64, 256, 2, 500, 256, True)
LENGTHS = [(9, 20), (10, 21), (9, 22), (11, 20)]


def caught(policy: type[Paged], num_seqs: int, device: str, dtype: torch.dtype) -> str:
    """The debug mode's error for a policy; empty if it finds none."""
    pool = PoolSpec(88, 256, host(256))
    scheduler = MixedPrefill(
        policy(pool, block_size=4), Swap(), max_num_batched_tokens=64, max_num_seqs=16
    )
    arch = Architecture(SHAPE, "opt")
    apart = TopP(temperature=8.0)  # the sequences of a request get tokens that differ
    options = Options(debug=True, parallel=apart, clock=StepClock())
    engine = assemble(scheduler, pool, arch, random_weights(arch, 0, device, dtype), options)
    try:
        engine.serve(
            [Request(i, i * 10**12, *lengths, num_seqs) for i, lengths in enumerate(LENGTHS)]
        )
    except SlotError as error:
        return str(error)
    return ""
