"""What the engine asserts of plug-ins: always in constant time a span, and now and then what takes longer."""

from collections.abc import Sequence as Seq
from itertools import chain
from numbers import Integral
from typing import Any

from numpy.typing import NDArray

from testbed.core.errors import PlugInError
from testbed.core.slots import Grant, Usage
from testbed.cost.model import Affine, CostModel, Work
from testbed.memory.policy import MemoryPolicy
from testbed.sched.scheduler import Scheduler
from testbed.sim.totals import Measures, Totals


class Samples:
    """Picks the first, the second, the fourth, the eighth time: what is always wrong is seen, at next to no price."""

    def __init__(self) -> None:
        self._times = 0

    def due(self) -> bool:
        """Count one time more; whether to look at this one."""
        self._times += 1
        return self._times & (self._times - 1) == 0


def check_stored(policy: MemoryPolicy, max_len: int) -> None:
    """Only a policy that declares it may drop tokens."""
    kept = policy.stored(max_len)
    if kept != max_len and not policy.drops_tokens:
        name = type(policy).__name__
        raise PlugInError(f"{name} keeps {kept} of {max_len} tokens, but does not declare drops_tokens = True")


def check_prices(cost: CostModel, prices: Affine) -> None:
    """Time is whole picoseconds, and every iteration takes some."""
    first_ps, growth_ps, steps = prices
    if not (type(first_ps) is type(growth_ps) is int and first_ps > 0 <= growth_ps and steps > 0):
        raise PlugInError(
            f"{type(cost).__name__} says that an iteration takes {first_ps!r} ps, each later one {growth_ps!r} more, "
            f"for {steps!r} iterations; prices are whole numbers above 0"
        )


def check_decode(cost: CostModel, work: Work, prices: Affine) -> None:
    """The prices of decode iterations in a row begin as those of the iterations one by one."""
    if type(cost).decode is CostModel.decode:
        return
    context, longest = work.decode_context + work.decode_seqs, work.decode_longest + 1
    later = work._replace(decode_context=context, decode_longest=longest)
    single = [cost.iteration(one) for one in (work, later)[: prices.steps]]
    row = [prices.first_ps, prices.first_ps + prices.growth_ps][: prices.steps]
    if row != single:
        raise PlugInError(f"{type(cost).__name__} says {row} ps by decode(), {single} ps by iteration(), of {work}")


def check_growth(policy: MemoryPolicy, before: Usage, grown: Grant) -> None:
    """What a policy said by growth that it has taken in a span is what it holds more."""
    taken = policy.usage().held - before.held
    if taken != grown.growth.slots:
        name = type(policy).__name__
        raise PlugInError(f"{name} took {taken} slots in several steps, and says {grown.growth.slots} by Grant.growth")


def check_balance(scheduler: Scheduler, totals: Totals) -> None:
    """Every request is somewhere."""
    r = scheduler.residents
    waiting, running = len(r.waiting) + len(r.arriving), len(r.running) - len(r.ended)
    if totals.arrived - totals.finished - totals.rejected != waiting + running + len(r.swapped):
        raise PlugInError(
            f"{type(scheduler).__name__} lost a request, or has one twice: {totals.arrived} arrived, {totals.finished} "
            f"are finished, {totals.rejected} rejected, {waiting} waiting, {running} running and "
            f"{len(r.swapped)} swapped"
        )


def check_accounts(used: Seq[NDArray[Any]], accounts: Seq[Usage], policy: str) -> None:
    """The kinds of slots add up to the pool (clause 4), in whole slots; a row of `used` for each field of Usage."""
    if not isinstance(sum(chain.from_iterable(accounts)), Integral):
        part = next(account for account in accounts if not isinstance(sum(account), Integral))
        raise PlugInError(f"{policy} counts parts of slots: {part}")
    total, _, _, allocated, cached, free, largest_free, _ = used
    wrong = (allocated + cached + free != total) | (free < 0) | (largest_free < 0)
    if wrong.any():
        raise PlugInError(f"{policy} miscounts its slots: {accounts[int(wrong.argmax())]}")


def check_measures(sums: NDArray[Any], policy: str) -> None:
    """No kind of memory is negative, in any span; a row of `sums` for each of Measures. `policy` is whose they are."""
    if (sums < 0).any():
        span = int((sums < 0).any(axis=0).argmax())
        raise PlugInError(
            f"{policy}: usage() does not go with its tables or footprints: summed over the iterations of a span, "
            f"{Measures(*sums[:, span].tolist())}"
        )
