"""Schedulers that break one clause each; `testbed check` must name it."""

from itertools import count

from broken_parts import BrokenParts

from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.plan import Plan
from testbed.sched.token_budget import PrefillChunks, Prefills

BROKEN = BrokenParts()
breaks = BROKEN.breaks
CALLS = count()


@breaks(7)
class PromisesStepsWhileRequestsWait(MixedPrefill):
    """Fast-forward hides that a waiting request could be admitted."""

    def plan(self):
        plan = super().plan()
        if plan.repeats and not self.state.beams:
            plan.guaranteed_steps = self.memory.guaranteed_steps(self.state.batch)
            plan.ends_on_arrival = False
        return plan


@breaks(9)
class DependsOnEarlierRuns(MixedPrefill):
    """A counter of the module decides when the queue is turned round."""

    def plan(self):
        if next(CALLS) % 7 == 0:
            self.state.waiting.rotate(1)
            self.state.refused = None
        return super().plan()


@breaks(10)
class ReturnsNoPlan(MixedPrefill):
    def plan(self):
        super().plan()


@breaks(10)
class CountsASequenceLess(MixedPrefill):
    def plan(self):
        plan = super().plan()
        plan.decode_seqs -= plan.decode_seqs > 1
        return plan


@breaks(10)
class PromisesMoreThanThePolicy(MixedPrefill):
    def plan(self):
        plan = super().plan()
        plan.guaranteed_steps += plan.guaranteed_steps > 0
        return plan


@breaks(10)
class ComputesBeyondItsSlots(MixedPrefill):
    def plan(self):
        plan = super().plan()
        plan.chunks = [chunk._replace(new=chunk.new + 1) for chunk in plan.chunks]
        return plan


@breaks(10)
class SkipsATokenOfThePrompt(MixedPrefill):
    def plan(self):
        plan = super().plan()
        plan.chunks = [chunk._replace(num_stored=chunk.num_stored + 1) for chunk in plan.chunks]
        return plan


class TwiceTheBudget(PrefillChunks):
    """Twice the rest of the budget."""

    def budget_left(self, plan):
        return super().budget_left(plan) + self.limits.max_num_batched_tokens


@breaks(17)
class ExceedsTheTokenBudget(ChunkedPrefill):
    prefills = TwiceTheBudget


class NoLimit(Prefills):
    def is_full_with(self, group):
        return False


@breaks(17)
class RunsTooManyRequests(MixedPrefill):
    prefills = NoLimit


@breaks(18)
class LosesARequest(MixedPrefill):
    def add(self, request):
        group = super().add(request)
        if request.request_id == 5:
            self.state.waiting.remove(group)
        return group


@breaks(18)
class QueuesARequestTwice(MixedPrefill):
    def add(self, request):
        group = super().add(request)
        if request.request_id == 5:
            self.state.waiting.append(group)
        return group


@breaks(19)
class AdmitsNoneAtFirst(MixedPrefill):
    """The first plan is empty, and nothing calls for another."""

    idle = True

    def plan(self):
        if self.idle and self.state.waiting:
            self.idle = False
            return Plan()
        return super().plan()


@breaks(20)
class WakesInThePast(MixedPrefill):
    def plan(self):
        if self.now_ps == 0 or self.state.running or not self.state.waiting:
            return super().plan()
        plan = Plan()
        plan.wake_ps = self.now_ps - 1
        return plan
