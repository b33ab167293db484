"""Clauses of a cost model, over random works of iterations."""

from collections.abc import Callable, Iterator
from random import Random

from testbed.checks.contract.clauses import ClauseBroken, broken_in, require
from testbed.core.slots import DEVICE, HOST
from testbed.cost.model import CostModel, Moved, Work, are_durations, wrong_durations

MAX_STEPS = 200
MakeCost = Callable[[], CostModel]


def check_cost(make: MakeCost, num_examples: int = 200) -> ClauseBroken | None:
    """The clause that a cost model breaks, with the work that breaks it; None if all hold."""
    cost, again, requested = make(), make(), list[Work]()

    def check() -> None:
        for work in works(Random(0), num_examples):
            requested.append(work)
            time_ps = checked_cost(cost, work)
            if not (work.prefill or work.copies or work.moves or work.forks) and work.decode_seqs:
                check_span(cost, work)
            same = checked_cost(cost, work) == time_ps
            require(9, same, f"{time_ps} ps, and another cost when computed again")
        for work in reversed(requested):
            require(
                9,
                checked_cost(again, work) == checked_cost(cost, work),
                "another model of the same class, called in another order, has another cost for "
                f"{work}",
            )

    return broken_in(
        check,
        "the last call",
        lambda: [f"iteration or decode of {work}" for work in requested[-1:]],
    )


def works(random: Random, count: int) -> Iterator[Work]:
    """Works of iterations: decodes, prompts, both, with and without copies, moves and forks."""
    for _ in range(count):
        num_seqs, num_prompts = (
            random.choice([0, 1, 3, random.randint(1, 256)]),
            random.choice([0, 0, 1, 4]),
        )
        lengths = [random.randint(1, 2000) for _ in range(num_seqs)]
        prefill = tuple(
            (random.randint(1, 500), random.choice([0, 64])) for _ in range(num_prompts)
        )
        moves = (
            Moved(source=DEVICE, target=HOST, length=16, num_transfers=3),
            Moved(source=HOST, target=DEVICE, length=16, num_transfers=2),
        )
        yield Work(
            decode_seqs=num_seqs,
            decode_context=sum(lengths),
            decode_max_context=max(lengths, default=0),
            decode_repeated=random.choice([0, 0, sum(lengths) // 2]),
            prefill=prefill or (() if num_seqs else ((1, 0),)),
            num_requests=num_seqs + num_prompts + random.choice([0, 5]),
            copies=random.choice([(), (), ((16, 4),)]),
            moves=random.choice([(), (), (), moves]),
            extra=(),
            forks=random.choice([0, 0, 2]),
        )


def checked_cost(cost: CostModel, work: Work) -> int:
    """The cost of one iteration, if it is a valid one."""
    time_ps = cost.iteration(work)
    valid = type(time_ps) is int and time_ps > 0
    require(10, valid, f"iteration() answered {time_ps!r}; a cost is an int above 0, in ps")
    least_ps = cost.least(work.num_tokens)
    require(10, least_ps <= time_ps, f"least() says {least_ps} ps, iteration() {time_ps} ps")
    return time_ps


def check_span(cost: CostModel, work: Work) -> None:
    """Clause 7: the costs of decodes in a row are those of the iterations one by one."""
    times = cost.decode(work)
    require(10, are_durations(times), f"decode(): {wrong_durations(cost, times)}")
    for step in range(min(times.steps, MAX_STEPS)):
        single, reported = cost.iteration(work.later(step)), times.first_ps + step * times.growth_ps
        require(
            7,
            reported == single,
            f"decode() says {reported} ps for step {step}, iteration() {single} ps",
        )
