"""Ends of iterations that a host launches one after the other, for a GPU that computes them in
that order.
"""

from testbed.cost.model import CostModel, Launch, Work
from testbed.sched.plan import Plan


class HostLaunches:
    """The launches of a host. launched_ps: when it has launched all iterations so far."""

    def __init__(self) -> None:
        self.launched_ps = 0
        self._seen = set[int]()  # numbers of tokens

    def launch(self, launch: Launch, planned_ps: int, num_tokens: int) -> int:
        """Launch an iteration when it is planned and the one before is launched; when the host has
        launched it (ps).
        """
        self.launched_ps = max(planned_ps, self.launched_ps) + launch.whole_ps
        if launch.unseen_ps and num_tokens not in self._seen:
            self._seen.add(num_tokens)
            self.launched_ps += launch.unseen_ps
        return self.launched_ps


def computed_ps(launch: Launch, launched_ps: int, free_ps: int, computing_ps: int) -> int:
    """The time at which the GPU has computed an iteration that the host has launched at
    launched_ps.

    It begins when it is free, at free_ps, and has the first of the iteration; it ends after it has
    the whole. A number of tokens that the host sees first delays both.
    """
    begin_ps = max(free_ps, launched_ps - launch.whole_ps + launch.first_ps)
    return max(begin_ps + computing_ps, launched_ps)


def launch_of(cost: CostModel, work: Work) -> Launch | None:
    """The times of launching an iteration, by its work; with drafts as it verifies them."""
    work = cost.launched(work)
    prompt_tokens = sum([new for new, _ in work.prefill])
    return cost.launch(work.decode_seqs, len(work.prefill), prompt_tokens)


def launched_counts(cost: CostModel, plan: Plan) -> tuple[int, int, int]:
    """Counts of launches of decodes and of prompts, and the tokens of prompts."""
    decode_seqs = plan.decode_seqs + len(plan.drafts)
    tokens = [chunk.new + chunk.padding for chunk in plan.chunks] if plan.chunks else []
    if plan.drafts and cost.verifies_as_prompts:
        verified = [1 + draft.num_drafts for draft in plan.drafts if draft.num_drafts]
        decode_seqs -= len(verified)
        tokens += verified
    return decode_seqs, len(tokens), sum(tokens)
