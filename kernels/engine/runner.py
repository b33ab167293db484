"""Carries out one plan: its moves, one forward pass over prompts and decodes, and what the model says to it."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernels.engine.gpu_timer import HostTimer
from kernels.engine.layout import Layout
from kernels.engine.network import Network
from kernels.engine.parts import parts_of
from kernels.engine.plain_attention import Attention
from kernels.engine.pool_moves import Moves
from kernels.engine.ragged import Part, Ragged, ragged
from kernels.engine.shadow import NoShadow
from kernels.engine.speaker import Said, Speaker
from kernels.engine.streams import Streams
from kernels.engine.tables import Tables
from kernels.engine.upload import upload
from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, SequenceGroup
from testbed.core.slots import Extent, ceil_div
from testbed.sched.beams import Replacement
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.residents import Residents


class Runner:
    """Everything between a plan and its results.

    `shadow` checks who owns what, or nothing. `forward` gives the logits of an iteration's wanted rows. longest is the
    longest prompt to warm up with, in tokens.
    """

    def __init__(
        self, residents: Residents, network: Network, attention: Attention, moves: Moves, layout: Layout,
        speaker: Speaker, timer: HostTimer, shadow: NoShadow, longest: int = 1,
    ) -> None:  # fmt: skip
        self.residents = residents
        self.network = network
        self.attention = attention
        self.moves = moves
        self.speaker = speaker
        self.timer = timer
        self.shadow = shadow
        self.streams: Streams = speaker.streams
        self.tables = Tables(residents.policy, layout)
        self.forward: Callable[[Ragged], Tensor] = self._forward
        self.longest = longest // layout.block_size * layout.block_size
        self._late: dict[int, SequenceGroup] = {}

    def run(self, plan: Plan, lengths: dict[int, int], meanwhile: Callable[[], None]) -> Results:
        """Perform the plan; `lengths` says how many output tokens each request is to have.

        `meanwhile` is called once, while the device works.
        """
        self.prepare(plan)
        groups = self.stepping(plan)
        prompts, decodes, owners = parts_of(plan, groups, self.residents)
        batch = ragged(prompts, decodes, self.streams, self.tables)
        if batch.parts:
            self.shadow.before(batch)
            logits = self.forward(batch)
            best = logits.argmax(dim=1)
        meanwhile()
        said = [Said(group, i, row) for row, (group, i) in enumerate(owners)]
        done = [chunk.group for chunk in plan.chunks if chunk.last]
        ended = [g.request.request_id for g in (*groups, *done) if g.num_generated + 1 == lengths[g.request.request_id]]
        self.wait()
        parents: dict[int, tuple[Replacement, ...]] = {}
        if batch.parts:
            self.shadow.after(batch, logits)
            parents = self.speaker.speak(logits, said, best)
        self._late = {g.request.request_id: g for g in done if g.num_generated and g.request.request_id in parents}
        return Results(tuple(ended), parents)

    def wait(self) -> None:
        """Wait for the device."""
        self.timer.wait()
        self.moves.settle()
        self.timer.waited()

    def follow(self, outcome: Outcome, results: Results) -> None:
        """The plan was committed: forks have given some sequences other tables."""
        for request_id, group in self._late.items():
            # The scheduler asks for no parents at the end of a prompt phase; after recompute a beam has some.
            if request_id not in results.ended:
                self.residents.choose_parents(group, results.parents[request_id])
        for request_id, pairs in results.parents.items():
            group = self.residents.running.get(request_id)
            for _, child in pairs if group else ():
                self.tables.forget(group.sequences[child].seq_id)
        for group in outcome.finished:
            for seq in group.sequences:
                self.tables.forget(seq.seq_id)
        self.shadow.released()

    def prepare(self, plan: Plan) -> None:
        """Perform the plan's moves, in its order."""
        for group in plan.preempted:
            for seq in group.sequences:
                self.tables.forget(seq.seq_id)
        self.shadow.planned(plan)
        for ops in plan.ops:
            self.timer.launched()
            self.moves.perform(ops)
            self.shadow.moved(ops)
        if plan.ops:
            self.tables.forget_all()
            self.moves.wait()

    def stepping(self, plan: Plan) -> list[SequenceGroup]:
        """The groups that take a decode step: the batch, and those resumed that have room for one."""
        batch = self.residents.batch
        running = self.residents.running.values() if plan.decode_seqs else ()
        groups = [group for group in running if group.sequences[0].batch is batch]
        return groups + [g for g in plan.resumed if g.sequences[0].room > g.sequences[0].stored]

    def register_prefix(self, num_tokens: int) -> None:
        """Compute the provider's prefix, which the policy has pinned."""
        place = self.tables.layout.place(list(self.residents.policy.unowned().pinned), "the registered prefix")
        seq = Sequence(-1, Incoming(-1, 0, num_tokens))
        self.streams.tokens[-1] = self.streams.prefix(num_tokens)
        self.tables.pin(seq, place)
        batch = ragged([Part(seq, num_tokens, 0, 0, True)], [], self.streams, self.tables)
        self.shadow.before(batch)
        self.shadow.after(batch, self._forward(batch))
        del self.streams.tokens[-1]

    def warm(self, num_tokens: int) -> None:
        """Run a batch of prompts of num_tokens tokens that writes nothing: kernels and products are loaded after it."""
        longest = min(num_tokens, self.longest)
        lengths = [longest] * (num_tokens // longest) + [num_tokens % longest] * bool(num_tokens % longest)
        self._forward(self.idle_batch(lengths, [])).argmax(dim=1).tolist()

    def idle_batch(self, prompts: list[int], decodes: list[int]) -> Ragged:
        """Prompts and decodes of so many tokens, all stored already: they read the pool and write nothing."""
        parts, layout = [], self.tables.layout
        for i, length in enumerate([*prompts, *decodes]):
            seq, new = Sequence(-2 - i, Incoming(-2 - i, 0, length)), length if i < len(prompts) else 1
            slots = ceil_div(length, layout.block_size) * layout.block_size
            self.streams.tokens[seq.seq_id] = [0] * length
            self.tables.pin(seq, layout.place([Extent(0, slots)], "a batch of nobody"))
            parts.append(Part(seq, new, length - new, length, True))
        batch = ragged(parts[: len(prompts)], parts[len(prompts) :], self.streams, self.tables)
        for part in parts:
            del self.streams.tokens[part.seq.seq_id]
            self.tables.forget(part.seq.seq_id)
        return batch

    def _forward(self, batch: Ragged) -> Tensor:
        self.timer.launched()
        arrays = {"tokens": batch.tokens, "positions": batch.positions, "wanted": batch.wanted}
        with torch.inference_mode():
            there = upload(arrays, self.network.weights.embedding.device)
            self.attention.open(batch)
            return self.network.logits(**there, attention=self.attention)


def live_tables(residents: Residents) -> Iterator[tuple[Sequence, list]]:
    """Every sequence that holds room on the device, and its table."""
    for group in residents.running.values():
        for seq in group.resident:
            yield seq, residents.policy.table(seq)
