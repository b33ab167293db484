"""Samples tokens from logits, appends them to the sequences, and selects the surviving beams."""

from typing import NamedTuple

from torch import Tensor

from testbed.core.sequence import SequenceGroup
from testbed.kernels.engine.beam_search import Beams, Survivors, best_of, first_candidates, survive
from testbed.kernels.engine.sampling import Draw, TopP
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

    def sample(self, logits: Tensor, sampled: list[SampledRow], best: Tensor) -> dict[int, tuple[Replacement, ...]]:
        """Append a token to every sequence that has one; returns the parents of each beam request that took a step.

        logits: [num_rows, vocab_size]; best: [num_rows], the most likely tokens.
        """
        parents: dict[int, tuple[Replacement, ...]] = {}
        beams = [one for one in sampled if one.group.request.beam]
        several = [one for one in sampled if _is_parallel(one) and not one.group.request.beam]
        alone = [one for one in sampled if not _is_parallel(one) and not one.group.request.beam]
        self._draw(logits, several)
        tokens = best.tolist() if alone else []
        for group, _, row in alone:
            self.token_buffers.append(group.sequences[0], tokens[row])
        groups = {one.group.request.request_id: one.group for one in beams}
        for request_id, group in groups.items():
            mine = [one for one in beams if one.group is group]
            survivors = self._search(logits, group, mine)
            if survivors is not None:
                parents[request_id] = survivors.parents
                self._go_on(group, survivors)
        return parents

    def end(self, group: SequenceGroup) -> list[float]:
        """Finish a request; returns the log-probabilities of its candidates if it is a beam."""
        beams = self._beams.pop(group.request.request_id, None)
        return beams.totals if beams else []

    def _draw(self, logits: Tensor, sampled: list[SampledRow]) -> None:
        """A token for each sequence of these rows."""
        rows, draws, seqs = [], [], []
        for group, index, row in sampled:
            first = not group.num_generated
            for i in range(len(group.sequences)) if first else [index]:
                rows.append(row)
                draws.append(Draw(group.request.request_id, i, group.num_generated))
                seqs.append(group.sequences[i])
        if rows:
            chosen = logits if rows == list(range(len(logits))) else logits[rows]
            for seq, token in zip(seqs, self.parallel.choose(chosen, draws), strict=True):
                self.token_buffers.append(seq, token)

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


def _is_parallel(one: SampledRow) -> bool:
    return len(one.group.sequences) > 1
