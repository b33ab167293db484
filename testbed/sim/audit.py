"""What the engine asserts of plug-ins, always, in constant time a span."""

from testbed.core.errors import PlugInError
from testbed.core.slots import Usage
from testbed.cost.model import Affine, CostModel
from testbed.memory.policy import MemoryPolicy
from testbed.sched.scheduler import Scheduler
from testbed.sim.totals import NUM_MEASURES, Measures, Sums, Totals


def check_usage(policy: MemoryPolicy, used: Usage) -> None:
    """Clause 4, which keeps every share between 0 and 1."""
    total, live, held, allocated, cached, free, largest_free, saved = used
    adds_up = allocated + cached + free == total and 0 <= live <= held <= allocated
    if not adds_up or cached < 0 or free < 0 or saved < 0 or not 0 <= largest_free <= free + cached:
        raise PlugInError(f"{type(policy).__name__} miscounts its slots: {used}")


def check_prices(cost: CostModel, prices: Affine) -> None:
    """Time is whole picoseconds, and every iteration takes some."""
    first_ps, growth_ps, steps = prices
    if not (type(first_ps) is type(growth_ps) is int and first_ps > 0 <= growth_ps and steps > 0):
        raise PlugInError(
            f"{type(cost).__name__} says that an iteration takes {first_ps!r} ps, each later one {growth_ps!r} more, "
            f"for {steps!r} iterations; prices are whole numbers above 0"
        )


def check_balance(scheduler: Scheduler, totals: Totals, sums: Sums) -> None:
    """Every request is somewhere, and no kind of memory is negative."""
    r = scheduler.residents
    inside = len(r.waiting) + len(r.running) + len(r.swapped)
    if totals.arrived != totals.finished + totals.rejected + inside:
        raise PlugInError(
            f"{type(scheduler).__name__} lost a request, or has one twice: {totals.arrived} arrived, {totals.finished} "
            f"are finished, {totals.rejected} rejected and {inside} waiting, running or swapped"
        )
    if min(sums) < 0:
        raise PlugInError(
            f"{type(scheduler.policy).__name__} has a footprint or a table that does not go with its usage(): "
            f"{Measures(*sums[:NUM_MEASURES])}"
        )
