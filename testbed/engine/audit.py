"""Assertions of the engine on plug-ins: always in constant time a span, and now and then what takes
longer.
"""

from collections.abc import Iterable
from itertools import chain
from numbers import Integral
from typing import Any

from numpy.typing import NDArray

from testbed.checks.contract import clauses
from testbed.core.errors import PlugInError
from testbed.core.sequence import Batch
from testbed.core.slots import DEVICE, Grant, Ops, Usage
from testbed.cost.model import Affine, CostModel, Launch, Work
from testbed.engine.totals import Measures, Totals
from testbed.memory.capabilities import Capabilities
from testbed.memory.policy import MemoryPolicy
from testbed.memory.pools import PoolSpec
from testbed.sched.plan import Plan, wrong_answer
from testbed.sched.scheduler import Scheduler
from testbed.sched.state import SchedulerState


def check_policy(memory: Capabilities, max_len: int, pool: PoolSpec | None) -> None:
    """No policy has more slots than it was given."""
    total = memory.policy.usage().total
    if pool and total > pool.num_slots:
        raise PlugInError(
            f"{memory.name} has {total} slots by usage(); {pool.num_slots} were given"
        )


def check_moves(policy: MemoryPolicy, ordered: Iterable[Ops], pool: PoolSpec) -> None:
    """Nothing moves beyond what the policy was given of a tier."""
    moves = [
        move
        for ops in ordered
        if ops.moves or ops.background
        for move in (*ops.moves, *(transfer.move for transfer in ops.background))
    ]
    for source, target, copies in moves:
        read = max((copy.src + copy.length for copy in copies), default=0)
        written = max((copy.dst + copy.length for copy in copies), default=0)
        for tier, end in ((source, read), (target, written)):
            num_slots = pool.num_slots if tier == DEVICE else pool.slots_of(tier)
            if end > num_slots:
                raise PlugInError(
                    f"{type(policy).__name__} moves slots up to {end} of the {tier}; {num_slots} "
                    "were given"
                )


def check_tables(state: SchedulerState, used: Usage) -> None:
    """Clauses 4 and 11 of the contract, in a run: usage(), tables and footprints go together."""
    memory, seqs = state.memory, [seq for group in state.with_slots() for seq in group.resident]
    tables = [memory.policy.table(seq) for seq in seqs]
    pinned = memory.non_sequence_slots().pinned
    try:
        for seq, table in zip(seqs, tables, strict=True):
            clauses.check_footprint(memory, seq, table)
        # A group on the host may have kept the prefix here.
        if not (pinned and memory.swaps is not None):
            held = clauses.num_slots_of(chain(pinned, *tables)) - used.saved
            clauses.require(
                4,
                held == used.held,
                f"usage() reports {used.held} held slots, the tables have {held}",
            )
    except clauses.ClauseBroken as error:
        whose = f"{memory.name}: usage() does not go with its tables or footprints"
        raise PlugInError(
            f"{whose}, {error}, with the tables of {seqs}; testbed check shows the calls"
        ) from error


def wrong_promise(scheduler: Scheduler, plan: Plan) -> PlugInError:
    """A plan promises a whole number of steps; an object of another class would see when the next
    output ends.
    """
    if type(plan.wake_ps) is not int:
        return wrong_answer(
            scheduler, plan.wake_ps, "wake_ps is a whole number, of the type int itself"
        )
    promise = f"{type(scheduler.policy).__name__} promises {plan.guaranteed_steps!r} steps"
    return PlugInError(f"{promise} by guaranteed_steps(); it is an int of at least 0")


def check_launch(cost: CostModel, launch: object) -> None:
    """A launch takes whole picoseconds, the first of it no longer than the whole."""
    if (
        type(launch) is not Launch
        or any(type(ps) is not int for ps in launch)
        or not 0 <= launch.first_ps <= launch.whole_ps
        or launch.unseen_ps < 0
    ):
        raise wrong_answer(cost, launch, "launch() gives a Launch of whole numbers, or None")


def check_hidden(cost: CostModel, launch: Launch, computing: Affine) -> None:
    """Decodes in a row hide their launches behind each other."""
    if launch.whole_ps > computing.first_ps:
        wish = f"decodes are launched no longer than the {computing.first_ps} ps that they compute"
        raise wrong_answer(cost, launch, wish)


def check_decode(cost: CostModel, work: Work, durations: Affine) -> None:
    """The costs of decode iterations in a row begin as those of the iterations one by one."""
    if not cost.spans:
        return
    steps = range(min(durations.steps, 2))
    single = [cost.iteration(work.later(step)) for step in steps]
    row = [durations.first_ps + step * durations.growth_ps for step in steps]
    if row != single:
        raise PlugInError(
            f"{type(cost).__name__} says {row} ps by decode(), {single} ps by iteration(), of "
            f"{work}"
        )


def check_repeated(memory: Capabilities, batch: Batch, work: Work) -> None:
    """The tokens that the batch reads more than once are those that its tables share."""
    by_tables = memory.reads_by_tables(batch)
    if work.decode_repeated != by_tables:
        raise PlugInError(
            f"{memory.name} says that decodes read {work.decode_repeated} tokens more "
            f"than once; by their tables it is {by_tables}"
        )


def check_growth(policy: MemoryPolicy, before: Usage, grown: Grant) -> None:
    """The slots that a policy reports as taken in a span are those that its tables have more."""
    taken = policy.usage().held - before.held
    if taken != grown.growth.slots:
        name = type(policy).__name__
        raise PlugInError(
            f"{name} took {taken} slots in several steps, and says {grown.growth.slots} by "
            "Grant.growth"
        )


def check_balance(scheduler: Scheduler, totals: Totals) -> None:
    """Every request that has arrived has ended, or is in exactly one queue."""
    state = scheduler.state
    waiting, running, swapped = state.num_waiting, len(state.running), len(state.swapped)
    gone = totals.finished + totals.rejected + totals.cancelled
    if totals.arrived - gone != waiting + running + swapped:
        raise PlugInError(
            f"{type(scheduler).__name__} lost a request, or has one twice: {totals.arrived} "
            f"arrived, {totals.finished} are finished, {totals.rejected} rejected, {waiting} "
            f"waiting, {running} running and {swapped} swapped"
        )


def check_whole_slots(accounts: Iterable[Usage], policy: str) -> None:
    """All accounts are in whole slots."""
    for account in accounts:
        if not isinstance(sum(account), Integral):
            raise PlugInError(f"{policy} counts parts of slots: {account}")


def check_accounts(used: NDArray[Any], policy: str) -> None:
    """The kinds of slots add up to the pool (clause 4); a row of `used` for each field of Usage."""
    total, _, _, allocated, cached, free, largest_free, _, in_transit = used
    wrong = (
        (allocated + cached + in_transit + free != total)
        | (free < 0)
        | (largest_free < 0)
        | (total != total[0])
    )
    if wrong.any():
        account = Usage(*used[:, int(wrong.argmax())].tolist())
        raise PlugInError(f"{policy} miscounts its slots: {account}")


def check_measures(sums: NDArray[Any], policy: str) -> None:
    """No kind of memory is negative, in any span; a row of `sums` for each of Measures. `policy` is
    whose they are.
    """
    if (sums < 0).any():
        span = int((sums < 0).any(axis=0).argmax())
        raise PlugInError(
            f"{policy}: usage() does not go with its tables or footprints (clause 4 or 11; testbed "
            "check shows the calls): summed over the iterations of a span, "
            f"{Measures(*sums[:, span].tolist())}"
        )
