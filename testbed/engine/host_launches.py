"""Ends of iterations that a host launches one after the other, for a GPU that computes them in
that order.
"""

from typing import NamedTuple

from testbed.cost.model import CostModel, Launch, Work
from testbed.sched.plan import Plan


class HostLaunches:
    """The launches of a host. launched_ps: when it has launched all iterations so far."""

    def __init__(self) -> None:
        self.launched_ps = 0

    def launch(self, launch: Launch, planned_ps: int) -> int:
        """Launch an iteration when it is planned and the one before is launched; when the host has
        launched it (ps).
        """
        self.launched_ps = max(planned_ps, self.launched_ps) + launch.whole_ps
        return self.launched_ps


def computed_ps(launch: Launch, launched_ps: int, free_ps: int, computing_ps: int) -> int:
    """The time at which the GPU has computed an iteration that the host has launched at
    launched_ps.

    It begins when it is free, at free_ps, and has the first of the iteration; it ends after it has
    the whole.
    """
    begin_ps = max(free_ps, launched_ps - launch.whole_ps + launch.first_ps)
    return max(begin_ps + computing_ps, launched_ps)


class Served(NamedTuple):
    """An iteration of a log. is_behind: it began when the one before ended, not later."""

    work: Work
    is_behind: bool


class Replay:
    """The durations of a log's iterations, as `SimulatedExecutor` has them one by one.

    plans_ahead: an iteration behind another is planned when that begins and is launched, otherwise
    when it has ended. Times are of a clock that stands still between iterations.
    """

    def __init__(self, cost: CostModel, *, plans_ahead: bool) -> None:
        self.durations_ps = list[int]()
        self._cost = cost
        self._plans_ahead = plans_ahead
        self._host = HostLaunches()
        self._before = Work()
        self._begun_ps = self._ended_ps = self._free_ps = 0  # of the iteration before

    def serve(self, served: Served) -> None:
        """One iteration more."""
        work, is_behind = served
        computing_ps, launch = self._cost.iteration(work), launch_of(self._cost, work)
        end_ps = self._ended_ps + computing_ps
        if launch is not None:
            launched_ps = self._launch(launch, is_ahead=self._plans_ahead and is_behind)
            end_ps = computed_ps(launch, launched_ps, self._free_ps, computing_ps)
        self._begun_ps = self._ended_ps
        self._ended_ps = self._free_ps = max(end_ps, self._begun_ps + 1)
        self._before = work
        self.durations_ps.append(self._ended_ps - self._begun_ps)

    def _launch(self, launch: Launch, *, is_ahead: bool) -> int:
        """The time of the iteration's launch; the host reads the tokens of prompts after that."""
        if not is_ahead:
            return self._host.launch(launch, self._ended_ps)
        planned_ps = max(self._begun_ps, self._host.launched_ps)
        launched_ps = self._host.launch(launch, planned_ps)
        late_ps = launched_ps - self._ended_ps
        if self._before.prefill and late_ps > 0:
            self._ended_ps += late_ps
            self.durations_ps[-1] += late_ps
        return launched_ps


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
