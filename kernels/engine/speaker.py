"""Turns logits into tokens: appends them to the sequences, and says which beams survive."""

from typing import NamedTuple

from torch import Tensor

from kernels.engine.beam_search import Beams, Survivors, best_of, first_candidates, survive
from kernels.engine.sampling import Draw, Sampler
from kernels.engine.streams import Streams
from testbed.core.sequence import SequenceGroup
from testbed.sched.beams import Replacement


class Said(NamedTuple):
    """Row `row` of the logits is about the next token of sequence `index` of a group.

    Where the group has yet to fork, it is about that of all its sequences.
    """

    group: SequenceGroup
    index: int
    row: int


class Speaker:
    """`parallel` samples where a request asks for several sequences without a beam, `single` the others.

    Without `single` these take the most likely token, of equal ones that with the lowest id.

    history lists (request id, step, parent, child): which candidate went on from which, where it changed.
    """

    def __init__(self, streams: Streams, parallel: Sampler, single: Sampler | None = None) -> None:
        self.streams = streams
        self.parallel = parallel
        self.single = single
        self.history: list[tuple[int, int, int, int]] = []
        self._beams: dict[int, Beams] = {}

    def speak(self, logits: Tensor, said: list[Said], best: Tensor) -> dict[int, tuple[Replacement, ...]]:
        """Append a token to every sequence that has one; returns the parents of each beam request that took a step.

        logits: [num_rows, vocab_size]; best: [num_rows], the most likely tokens.
        """
        parents: dict[int, tuple[Replacement, ...]] = {}
        beams = [one for one in said if one.group.request.beam]
        several = [one for one in said if _is_parallel(one) and not one.group.request.beam]
        alone = [one for one in said if not _is_parallel(one) and not one.group.request.beam]
        self._draw(logits, several, self.parallel)
        if self.single is None:
            tokens = best.tolist() if alone else []
            for group, _, row in alone:
                self.streams.append(group.sequences[0], tokens[row])
        else:
            self._draw(logits, alone, self.single)
        groups = {one.group.request.request_id: one.group for one in beams}
        for request_id, group in groups.items():
            mine = [one for one in beams if one.group is group]
            survivors = self._search(logits, group, mine)
            if survivors is not None:
                parents[request_id] = survivors.parents
                self._go_on(group, survivors)
        return parents

    def total(self, request_id: int, index: int) -> float:
        """The log-probability of a beam candidate."""
        return self._beams[request_id].totals[index]

    def end(self, group: SequenceGroup) -> None:
        """A request has its answer."""
        self._beams.pop(group.request.request_id, None)

    def _draw(self, logits: Tensor, said: list[Said], sampler: Sampler) -> None:
        """A token for each sequence of these rows."""
        rows, draws, seqs = [], [], []
        for group, index, row in said:
            first = not group.num_generated
            for i in range(len(group.sequences)) if first else [index]:
                rows.append(row)
                draws.append(Draw(group.request.request_id, i, group.num_generated))
                seqs.append(group.sequences[i])
        if rows:
            chosen = logits if rows == list(range(len(logits))) else logits[rows]
            for seq, token in zip(seqs, sampler.choose(chosen, draws), strict=True):
                self.streams.append(seq, token)

    def _search(self, logits: Tensor, group: SequenceGroup, said: list[Said]) -> Survivors | None:
        """The next step of a beam; None while recompute has yet to bring the scores of other candidates."""
        request_id, k = group.request.request_id, len(group.sequences)
        best = best_of(logits[[one.row for one in said]], k)
        if not group.num_generated:
            survivors = first_candidates(best[0])
            self._beams[request_id] = Beams(survivors.totals)
            return survivors
        beams = self._beams[request_id]
        beams.held.update({one.index: found for one, found in zip(said, best, strict=True)})
        if len(beams.held) < k:
            return None
        survivors = survive(beams.totals, [beams.held[i] for i in range(k)])
        self._beams[request_id] = Beams(survivors.totals)
        return survivors

    def _go_on(self, group: SequenceGroup, survivors: Survivors) -> None:
        """The candidates' tokens after a step."""
        tokens, seqs = self.streams.tokens, group.sequences
        before = [tokens[seq.seq_id] for seq in seqs]
        for parent, child in survivors.parents:
            tokens[seqs[child].seq_id] = list(before[parent])
            self.history.append((group.request.request_id, group.num_generated + 1, parent, child))
        for seq, token in zip(seqs, survivors.tokens, strict=True):
            self.streams.append(seq, token)


def _is_parallel(one: Said) -> bool:
    return len(one.group.sequences) > 1
