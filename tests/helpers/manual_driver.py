"""Policies and schedulers driven by hand: calls as residents and engine make them, without a
clock.
"""

from same_runs import lengths_of

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, disband, passing_batch
from testbed.core.slots import Refusal
from testbed.engine.outputs import Outputs
from testbed.memory.capabilities import capabilities_of
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.beam_search import SyntheticBeams
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.plan import Plan, Results
from testbed.sched.preemption import preempt_victim
from testbed.sched.separate import SeparatePrefill

ITERATION_LEVEL = [SeparatePrefill, MixedPrefill, ChunkedPrefill]
LIMITS = {"max_num_batched_tokens": 2560, "max_num_seqs": 256}


def paged(num_blocks=16, kind=Paged, host_blocks=0, max_len=64, **options):
    """Memory of so many blocks of four slots, all of which may be taken."""
    pool = PoolSpec(num_blocks * 4, max_len, host(host_blocks * 4))
    return kind(pool, block_size=4, **{"watermark": 0, **options})


def scheduler_of(kind, policy, rule, **limits):
    """An iteration-level scheduler with these limits, wide ones if none are given."""
    return kind(policy, rule, **{**LIMITS, **limits})


def sequence(seq_id, prompt_len=1, **request):
    """The only sequence of a request of the same number."""
    return Sequence(seq_id, Incoming(seq_id, 0, prompt_len, **request))


def samples(prompt_len, count=2, first=0):
    """The `count` sequences of one request, numbered from `first` on."""
    request = Incoming(first, 0, prompt_len, num_seqs=count)
    return [Sequence(first + i, request) for i in range(count)]


def admit(policy, seqs, num_tokens):
    """Slots for these sequences, of whose tokens none is computed yet; the policy's answers."""
    answers = policy.admit(seqs, num_tokens)
    if not isinstance(answers, Refusal):
        for seq, grant in zip(seqs, answers, strict=True):
            seq.num_slots, seq.num_stored = max(num_tokens, grant.num_cached), grant.num_cached
    return answers


def admit_and_prefill(policy, seqs, num_tokens):
    """Admit these sequences and compute their first num_tokens tokens; the policy's answers."""
    answers = admit(policy, seqs, num_tokens)
    if not isinstance(answers, Refusal):
        for seq in seqs:
            seq.num_stored = seq.num_slots
            publish(policy, seq)
    return answers


def publish(policy, seq):
    """Stored tokens of the sequence may be found by others, if the policy publishes."""
    publishes = capabilities_of(policy).publishes
    if publishes is not None:
        publishes.publish(seq, seq.num_stored)


def extend(policy, seqs, num_tokens):
    """num_tokens more tokens for each of these sequences, computed at once; the policy's answer."""
    batch = passing_batch(seqs)
    answer = policy.extend(batch, num_tokens)
    if not isinstance(answer, Refusal):
        batch.extend(num_tokens)
        batch.advance(num_tokens)
    disband(batch)
    for seq in seqs:
        publish(policy, seq)
    return answer


def fork(policy, parent, child):
    """`child` goes on from all of the parent's tokens; the copies that this takes."""
    ops = capabilities_of(policy).fork(parent, child)
    child.num_slots, child.num_stored = parent.num_slots, parent.num_stored
    return ops


def release(policy, seq):
    """The sequence needs nothing any more."""
    policy.release(seq)
    seq.num_slots = seq.num_stored = 0


class ManualDriver:
    """A scheduler and the outputs of its requests, plan by plan, as an engine drives it."""

    def __init__(self, scheduler, beams=None):
        self.scheduler = scheduler
        self.state = scheduler.state
        self.policy = scheduler.policy
        self.outputs = Outputs(scheduler.state, beams or SyntheticBeams(), lengths_of(scheduler))
        self.ahead = None  # the next plan, if it was made while the one before ran

    def add(self, request):
        """The request arrives; its group."""
        self.outputs.arrived(request)
        return self.scheduler.add(request.incoming)

    def carry_out(self, plan, steps=1):
        """The outcome of a plan."""
        outcome = self.scheduler.commit(plan, steps, self.outputs.results(plan, steps))
        self.outputs.follow(plan, outcome)
        return outcome

    def plan(self):
        """The next plan."""
        plan = self.scheduler.plan()
        self.outputs.preempted(plan)
        return plan

    def step(self):
        """The next plan and its outcome; a scheduler that plans ahead makes the plan after it
        first.
        """
        plan, self.ahead = self.ahead or self.plan(), None
        if not (self.scheduler.plans_ahead and self.scheduler.can_plan_ahead()):
            return plan, self.carry_out(plan)
        self.anticipate(plan)
        self.ahead = self.plan()
        return plan, self.conclude(plan)

    def anticipate(self, plan):
        """The plan's iteration begins."""
        self.ended = self.outputs.ended(plan, 1)
        outcome = self.scheduler.anticipate(plan, 1, self.ended)
        self.outputs.follow(plan, outcome, self.ended)

    def conclude(self, plan):
        """The outcome of a plan that was anticipated."""
        outcome = self.scheduler.commit(plan, 1, Results(self.ended))
        for group in outcome.finished:
            self.outputs.removed(group.request_id)
        return outcome

    def preempt(self):
        """The rule's victim is preempted, outside a step; the plan that says so."""
        plan = Plan()
        preempt_victim(self.state, self.scheduler.preemption, plan)
        self.outputs.preempted(plan)
        return plan
