"""Samples tokens from logits, appends them to the sequences, and selects the surviving beams by the
model's scores.
"""

from collections.abc import Sequence as SequenceOf
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from testbed.core.sequence import Sequence, SequenceGroup
from testbed.kernels.engine.ragged import Drafts, upload
from testbed.kernels.engine.random_numbers import uniforms
from testbed.kernels.engine.token_buffers import Drawn, Owner, TokenBuffers
from testbed.kernels.launch.sampling import draw_tokens
from testbed.sched.beam_search import Replacement, pairs

Best = list[
    tuple[int, float]
]  # the best next tokens of one candidate, in order, and their log-probabilities


BY_REQUEST, OWN_SEED = 3, 4  # streams of random numbers


class Drawing(NamedTuple):
    """A draw: the sequence that gets the token (None: no sequence), its row of the logits, and the
    words from which its random number is computed.
    """

    seq: Sequence | None
    row: int
    key: tuple[int, ...]


class Survivors(NamedTuple):
    """The result of a step: the parent, the new token and the new total of each candidate."""

    parents: tuple[Replacement, ...]
    tokens: list[int]
    totals: list[float]


def best_of(logits: Tensor, k: int) -> list[Best]:
    """The best k tokens of every row of logits [num_rows, vocab_size]; ties by the lower id."""
    scores = torch.log_softmax(logits.float(), dim=1)
    top = torch.topk(scores, min(k + 1, scores.shape[1]), dim=1)
    values, tokens = top.values, top.indices
    if k < scores.shape[1] and bool((values[:, k] == values[:, k - 1]).any()):  # a tie at the cut
        values, tokens = torch.sort(scores, dim=1, descending=True, stable=True)
    rows = zip(tokens[:, :k].tolist(), values[:, :k].tolist(), strict=True)
    return [sorted(zip(*row, strict=True), key=lambda pair: (-pair[1], pair[0])) for row in rows]


def survive(totals: list[float], best: list[Best]) -> Survivors:
    """One step: the best k of all continuations; ties by lower parent, then lower token.

    A parent's first continuation keeps its index; the others take the indexes of candidates that
    did not survive.
    """
    k = len(totals)
    ahead = [
        (-(totals[parent] + score), parent, token)
        for parent, continuations in enumerate(best)
        for token, score in continuations
    ]
    chosen = sorted((parent, token, -score) for score, parent, token in sorted(ahead)[:k])
    replaced = pairs(tuple(parent for parent, _, _ in chosen))
    free, reached = iter([child for _, child in replaced]), dict[int, tuple[int, float]]()
    for parent, token, score in chosen:
        reached[next(free) if parent in reached else parent] = token, score
    placed = [reached[i] for i in range(k)]
    return Survivors(replaced, [token for token, _ in placed], [score for _, score in placed])


class TopP:
    """Draws from the most likely tokens whose probabilities sum to top_p, at a temperature.

    The random number depends on seed, request, sequence and step only: batching and preemption
    change no draw. With own_seed it does not depend on the request either: the same prompt gets the
    same answer.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
        own_seed: bool = False,
    ) -> None:
        if not (temperature > 0 and 0 < top_p <= 1):
            raise ValueError(
                f"temperature={temperature}, top_p={top_p}: must be above 0, and above 0 and at "
                "most 1"
            )
        self.temperature = temperature
        self.top_p = top_p
        self.seed = seed
        self.own_seed = own_seed

    def choose(self, logits: Tensor, draws: SequenceOf[Drawing]) -> Tensor:
        """One token for each draw from its row of logits [num_rows, vocab_size], int64 on their
        device.
        """
        numbers = uniforms([draw.key for draw in draws])
        rows = np.array([draw.row for draw in draws], np.int64)
        sent = upload({"rows": rows, "numbers": numbers}, logits.device)
        return self.tokens_at(logits, sent["rows"], sent["numbers"])

    def tokens_at(self, logits: Tensor, rows: Tensor, numbers: Tensor) -> Tensor:
        """The tokens of rows of logits at numbers from 0 to 1 of their distributions."""
        if self.top_p < 1:
            return self._of_likeliest(logits[rows], numbers)
        if not logits.is_cuda:
            return tokens_by_number(logits[rows], numbers, self.temperature)
        tokens = torch.empty_like(rows)
        draw_tokens(tokens, logits, rows, numbers, temperature=self.temperature)
        return tokens

    def _of_likeliest(self, logits: Tensor, numbers: Tensor) -> Tensor:
        shares, tokens = torch.sort(
            torch.softmax(logits.float() / self.temperature, dim=1), descending=True, stable=True
        )
        sums = shares.cumsum(dim=1)
        kept = torch.where(sums - shares < self.top_p, shares, 0.0)
        return tokens.gather(1, _places(kept, numbers)).flatten()

    def key(self, request_id: int, index: int, num_generated: int) -> tuple[int, ...]:
        """The words of the random number of a step of a request's sequence."""
        stream = (OWN_SEED, 0) if self.own_seed else (BY_REQUEST, request_id)
        return (self.seed, *stream, index, num_generated)


def tokens_by_number(logits: Tensor, numbers: Tensor, temperature: float) -> Tensor:
    """The tokens of `draw_tokens`, computed by torch; sums are float64."""
    shares = torch.softmax(logits.double() / temperature, dim=1)
    return _places(shares, numbers).flatten()


def _places(shares: Tensor, numbers: Tensor) -> Tensor:
    """The first place of each row whose share and those before it sum to more than the number of
    their total; for a number of 1 the last that has a share.
    """
    sums = shares.cumsum(dim=1)
    aim = numbers[:, None].to(sums.dtype) * sums[:, -1:]
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(sums, aim, right=True), last)


class Sampler:
    """`parallel` samples the sequences of a request with several and without a beam.

    A single sequence takes the most likely token, ties by the lowest id. rules: how requests are
    sampled that have a rule of their own; None: each sequence takes the most likely token.

    history lists (request id, step, parent, child) for every candidate that continues another one.
    """

    def __init__(self, token_buffers: TokenBuffers, parallel: TopP) -> None:
        self.token_buffers = token_buffers
        self.parallel = parallel
        self.rules: dict[int, TopP | None] = {}
        self.history: list[tuple[int, int, int, int]] = []
        # Of each search: its candidates' log-probabilities, and the results of recompute so far.
        self._beams: dict[int, tuple[list[float], dict[int, Best]]] = {}

    def get_ready(self, like: Tensor) -> None:
        """Load the kernel that draws from logits of the type and device of `like`."""
        key = self.parallel.key(0, 0, 0)
        TopP().choose(like.new_zeros(1, 8), [Drawing(None, 0, key)])

    def draw(self, logits: Tensor, wanted: "Wanted") -> Drawn:
        """The next token of every sequence that no search chooses for; nothing waits for the
        device.

        logits: [num_rows, vocab_size].
        """
        parts: list[Tensor] = []
        if wanted.alone:
            parts.append(_rows(logits.argmax(dim=1), [row for _, row in wanted.alone]))
        for rule, draws in wanted.drawn.values():
            parts.append(rule.choose(logits, draws))
        if not parts:
            parts.append(logits.new_empty(0, dtype=torch.int64))
        return Drawn(wanted.takers, parts[0] if len(parts) == 1 else torch.cat(parts))

    def keep(self, drawn: Drawn) -> None:
        """Append drawn tokens, which are on the host now, to the sequences that are still there."""
        buffers = self.token_buffers.tokens
        for seq, token in zip(drawn.takers, drawn.on_host.tolist(), strict=True):
            if seq.seq_id in buffers:
                buffers[seq.seq_id].append(token)

    def verify(self, drawn: Drawn, drafts: Drafts) -> dict[int, int]:
        """`keep` if sequences have drafts, whose tokens are drawn one behind the other: those
        that are as drafted are kept, and the one behind them. Returns the number of accepted drafts
        by request id.
        """
        buffers, accepted = self.token_buffers.tokens, dict[int, int]()
        chosen: dict[Sequence, list[int]] = {}
        for seq, token in zip(drawn.takers, drawn.on_host.tolist(), strict=True):
            chosen.setdefault(seq, []).append(token)
        for seq, tokens in chosen.items():
            num_accepted = num_equal(drafts.get(seq.seq_id, ()), tokens)
            buffers[seq.seq_id] += tokens[: num_accepted + 1]
            if seq.seq_id in drafts:
                accepted[seq.request_id] = num_accepted
        return accepted

    def search(self, logits: Tensor, wanted: "Wanted") -> dict[int, tuple[Replacement, ...]]:
        """Append a token to every candidate of a search; returns the parents of each beam request
        that took a step.
        """
        parents: dict[int, tuple[Replacement, ...]] = {}
        buffers = self.token_buffers.tokens
        for request_id, (group, members, own) in wanted.beams.items():
            survivors = self._search(logits[own], group, members)
            if survivors is not None:
                parents[request_id] = survivors.parents
                before = [buffers[seq.seq_id] for seq in group.sequences]
                for parent, child in survivors.parents:
                    buffers[group.sequences[child].seq_id] = list(before[parent])
                    self.history.append((request_id, group.num_generated + 1, parent, child))
                for seq, token in zip(group.sequences, survivors.tokens, strict=True):
                    buffers[seq.seq_id].append(token)
        return parents

    def rule_of(self, group: SequenceGroup) -> "TopP | None":
        """The sampling of a request without a beam; None: the most likely one."""
        usual = self.parallel if len(group.sequences) > 1 else None
        return self.rules.get(group.request_id, usual)

    def totals(self, request_id: int) -> list[float]:
        """The log-probability of each candidate of a search so far."""
        return self._beams[request_id][0]

    def end(self, group: SequenceGroup) -> None:
        """Remove what is kept of a finished request."""
        self._beams.pop(group.request_id, None)
        self.rules.pop(group.request_id, None)
        self.token_buffers.end(group)

    def _search(self, logits: Tensor, group: SequenceGroup, members: list[int]) -> Survivors | None:
        """The next step of a beam; None while recompute lacks the scores of other candidates."""
        request_id, k = group.request_id, len(group.sequences)
        best = best_of(logits, k)
        if group.num_generated:
            totals, held = self._beams[request_id]
            held.update(zip(members, best, strict=True))
            if len(held) < k:
                return None
            survivors = survive(totals, [held[i] for i in range(k)])
        else:
            survivors = Survivors(
                (), [token for token, _ in best[0]], [score for _, score in best[0]]
            )
        self._beams[request_id] = survivors.totals, {}
        return survivors


class Wanted:
    """The rows of the logits by what happens to them: `alone` take the most likely token, others
    are drawn or searched.

    takers: the sequences of `alone` and of `drawn`, in that order. A row of a request that has not
    forked yet is read once for each of its sequences. `drawn` has, by temperature and top_p, a rule
    with these and its draws. `beams` has each search's group, members and rows by request id.
    """

    def __init__(self, owners: list[Owner], sampler: Sampler) -> None:
        self.owners = owners
        self.alone: list[tuple[Sequence, int]] = []
        self.beams: dict[int, tuple[SequenceGroup, list[int], list[int]]] = {}
        self.drawn: dict[tuple[float, float], tuple[TopP, list[Drawing]]] = {}
        for row, (group, member, num_drafts) in enumerate(owners):
            if group.request.beam:
                beam = self.beams.setdefault(group.request_id, (group, [], []))
                beam[1].append(member)
                beam[2].append(row)
            else:
                step = group.num_generated + num_drafts
                self._add(group, member, row, step, sampler.rule_of(group))
        self.takers = [seq for seq, _ in self.alone]
        for _, draws in self.drawn.values():
            self.takers += [draw.seq for draw in draws if draw.seq is not None]

    def _add(
        self, group: SequenceGroup, member: int, row: int, step: int, rule: TopP | None
    ) -> None:
        """The sequence that owns the row, or, before a group forks, each of its sequences."""
        members = [member] if step else range(len(group.sequences))
        if rule is None:
            self.alone += [(group.sequences[i], row) for i in members]
            return
        _, draws = self.drawn.setdefault((rule.temperature, rule.top_p), (rule, []))
        for i in members:
            key = rule.key(group.request_id, i, step)
            draws.append(Drawing(group.sequences[i], row, key))


def num_equal(drafts: tuple[int, ...], tokens: list[int]) -> int:
    """The number of first tokens that are as drafted."""
    pairs_of = zip(drafts, tokens, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs_of))


def _rows(values: Tensor, rows: list[int]) -> Tensor:
    """These rows; the tensor itself if they are all of its rows."""
    if rows == list(range(len(values))):
        return values
    return values[upload({"rows": np.array(rows, np.int64)}, values.device)["rows"]]
