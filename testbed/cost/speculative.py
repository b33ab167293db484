"""Iterations with speculative decoding: the model verifies, then the drafter drafts."""

from testbed.core.slots import ceil_div, record
from testbed.cost.model import CostModel, Launch, Moved, Work


class SpeculativeCost(CostModel):
    """The cost of an iteration in which the model verifies drafts, plus num_drafts passes of the
    drafter behind it.

    The first pass computes all tokens of the iteration, because the drafter stores K and V of them
    too; each later one computes a token of each sequence, and reads one token more. Drafts are
    proposed for the whole batch or not at all. If the model's cost verifies as prompts, drafts are
    computed by its kernels for prompts; see `verified_as_prompts`.

    Attributes:
        cost: the cost of the model's own iterations.
        drafter: the cost of the drafter's passes; None if drafts take no time of the GPU.
        num_drafts: drafts of a sequence.
        off_above: the most requests for which drafts are proposed; None: there is no such limit.
    """

    def __init__(
        self, cost: CostModel, drafter: CostModel | None, num_drafts: int, off_above: int | None
    ) -> None:
        self.cost = cost
        self.drafter = drafter
        self.num_drafts = num_drafts
        self.off_above = off_above
        self.windows = cost.windows
        self.verifies_as_prompts = cost.verifies_as_prompts
        self.fingerprint = cost.fingerprint
        self.fit = cost.fit
        self.provenance = cost.provenance
        self.software = cost.software
        self.times = cost.times
        self.launches = cost.launches
        self.slowness = cost.slowness

    def iteration(self, work: Work) -> int:
        return self.cost.iteration(self.launched(work)) + self._drafting_ps(work)

    def launched(self, work: Work) -> Work:
        """Also as the model's kernels compute it."""
        return verified_as_prompts(work, self.num_drafts) if self.verifies_as_prompts else work

    def least(self, num_tokens: int) -> int:
        return self.cost.least(num_tokens)

    def launch(self, decode_seqs: int, num_prompts: int, prompt_tokens: int) -> Launch | None:
        return self.cost.launch(decode_seqs, num_prompts, prompt_tokens)

    def transfer(self, moves: tuple[Moved, ...]) -> int:
        return self.cost.transfer(moves)

    def _drafting_ps(self, work: Work) -> int:
        num_seqs = work.decode_seqs + len(work.prefill)
        is_off = self.off_above is not None and num_seqs > self.off_above
        if self.drafter is None or not num_seqs:
            return 0
        first = Work(
            work.decode_seqs,
            work.decode_context,
            work.decode_max_context,
            work.decode_repeated,
            work.prefill,
            draft_tokens=work.draft_tokens,
        )
        context = work.decode_context + sum([new + stored for new, stored in work.prefill])
        longest = max([work.decode_max_context, *(new + stored for new, stored in work.prefill)])
        whole_ps = self.drafter.iteration(first)
        for step in range(1, 1 if is_off else self.num_drafts):
            reads = context + step * num_seqs, longest + step, 0
            later: Work = record(Work, (num_seqs, *reads, (), 0, (), (), (), 0, (), 0))
            whole_ps += self.drafter.iteration(later)
        return whole_ps


def verified_as_prompts(work: Work, num_drafts: int) -> Work:
    """The same tokens, in which decodes with drafts become chunks of prompts.

    `work` does not say how the drafts are spread: as few decodes as possible are taken to have
    some, and all decodes are taken to read the same number of tokens. The cost of a chunk has the
    output projection of one token, although all its tokens are projected; both read the same
    weights.
    """
    if not work.draft_tokens:
        return work
    num_drafted = min(ceil_div(work.draft_tokens, num_drafts), work.decode_seqs)
    fewest, num_longer = divmod(work.draft_tokens, num_drafted)
    context, left = work.decode_context // work.decode_seqs, work.decode_seqs - num_drafted
    new = [1 + fewest + (i < num_longer) for i in range(num_drafted)]
    return work._replace(
        decode_seqs=left,
        decode_context=left * context,
        decode_max_context=context if left else 0,
        decode_repeated=0,
        prefill=(*((count, max(context - count, 0)) for count in new), *work.prefill),
        draft_tokens=0,
    )
