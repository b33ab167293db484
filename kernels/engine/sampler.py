"""Samples tokens from logits, appends them to the sequences, and selects the surviving beams."""

from typing import NamedTuple

from torch import Tensor

from testbed.core.sequence import Sequence, SequenceGroup
from testbed.kernels.engine.beam_search import Beams, Survivors, best_of, first_candidates, survive
from testbed.kernels.engine.sampling import TopP
from testbed.kernels.engine.token_buffers import TokenBuffers
from testbed.sched.beams import Replacement


class SampledRow(NamedTuple):
    """Row `row` of the logits is for the next token of sequence `member` of a group.

    Before the group forks, the row is for all its sequences.
    """

    group: SequenceGroup
    member: int
    row: int


class Sampler:
    """`parallel` samples the sequences of a request with several and without a beam.

    A single sequence takes the most likely token, ties by the lowest id.

    history lists (request id, step, parent, child) for every candidate that continues another one.
    """

    def __init__(self, token_buffers: TokenBuffers, parallel: TopP) -> None:
        self.token_buffers = token_buffers
        self.parallel = parallel
        self.history: list[tuple[int, int, int, int]] = []
        self._beams: dict[int, Beams] = {}

    def expect(self, sampled: list[SampledRow]) -> "Wanted":
        """What these rows are for, and the random numbers that they take; called while the device works."""
        return Wanted(sampled, self.parallel)

    def sample(self, logits: Tensor, wanted: "Wanted", best: Tensor) -> dict[int, tuple[Replacement, ...]]:
        """Append a token to every sequence that has one; returns the parents of each beam request that took a step.

        logits: [num_rows, vocab_size]; best: [num_rows], the most likely tokens.
        """
        parents: dict[int, tuple[Replacement, ...]] = {}
        buffers = self.token_buffers.tokens
        if rows := wanted.drawn_rows:
            chosen = logits if rows == list(range(len(logits))) else logits[rows]
            for seq, token in zip(wanted.drawn, self.parallel.choose(chosen, wanted.numbers), strict=True):
                buffers[seq.seq_id].append(token)
        tokens = best.tolist() if wanted.alone else []
        for seq, row in wanted.alone:
            buffers[seq.seq_id].append(tokens[row])
        groups = {one.group.request.request_id: one.group for one in wanted.beams}
        for request_id, group in groups.items():
            mine = [one for one in wanted.beams if one.group is group]
            survivors = self._search(logits, group, mine)
            if survivors is not None:
                parents[request_id] = survivors.parents
                self._go_on(group, survivors)
        return parents

    def end(self, group: SequenceGroup) -> list[float]:
        """Finish a request; returns the log-probabilities of its candidates if it is a beam."""
        beams = self._beams.pop(group.request.request_id, None)
        return beams.totals if beams else []

    def _search(self, logits: Tensor, group: SequenceGroup, sampled: list[SampledRow]) -> Survivors | None:
        """The next step of a beam; None while recompute lacks the scores of other candidates."""
        request_id, k = group.request.request_id, len(group.sequences)
        best = best_of(logits[[one.row for one in sampled]], k)
        if not group.num_generated:
            survivors = first_candidates(best[0])
            self._beams[request_id] = Beams(survivors.totals)
            return survivors
        beams = self._beams[request_id]
        beams.held.update({one.member: found for one, found in zip(sampled, best, strict=True)})
        if len(beams.held) < k:
            return None
        survivors = survive(beams.totals, [beams.held[i] for i in range(k)])
        self._beams[request_id] = Beams(survivors.totals)
        return survivors

    def _go_on(self, group: SequenceGroup, survivors: Survivors) -> None:
        """Set the candidates' tokens after a step."""
        tokens, seqs = self.token_buffers.tokens, group.sequences
        before = [tokens[seq.seq_id] for seq in seqs]
        for parent, child in survivors.parents:
            tokens[seqs[child].seq_id] = list(before[parent])
            self.history.append((group.request.request_id, group.num_generated + 1, parent, child))
        for seq, token in zip(seqs, survivors.tokens, strict=True):
            self.token_buffers.append(seq, token)


class Wanted:
    """The rows `sampled` by what happens to them: `alone` take the most likely token, others are drawn or are beams'.

    A row of a request that has not forked yet is drawn from once for each of its sequences.
    """

    def __init__(self, sampled: list[SampledRow], parallel: TopP) -> None:
        self.sampled = sampled
        self.alone: list[tuple[Sequence, int]] = []
        self.beams: list[SampledRow] = []
        self.drawn: list[Sequence] = []
        self.drawn_rows: list[int] = []
        self.numbers: list[float] = []
        for one in sampled:
            group, member, row = one
            if group.request.beam:
                self.beams.append(one)
            elif len(group.sequences) == 1:
                self.alone.append((group.sequences[0], row))
            else:
                step = group.num_generated
                for i in [member] if step else range(len(group.sequences)):
                    self.drawn.append(group.sequences[i])
                    self.drawn_rows.append(row)
                    self.numbers.append(parallel.uniform(group.request.request_id, i, step))
