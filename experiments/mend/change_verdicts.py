"""The verdicts on changes of a server, by the differences from the server as it is."""

from collections.abc import Sequence
from typing import NamedTuple

from testbed.experiments.mend.goals import NUMBERS, Goal, loss_of
from testbed.experiments.mend.tried import Tried
from testbed.run.summaries import costs_of
from testbed.study.multiple_tests import deciding, holm
from testbed.study.replications import Interval

LEVEL = 0.05
RELEVANT = 0.02  # of the goal's mean, below which a difference is no reason for a change
BETTER, EQUAL, UNKNOWN = "better", "changes nothing", "not distinguishable"
LITTLE, LITTLE_WORSE = (f"{word} by less than {RELEVANT:.0%}" for word in ("better", "worse"))
WORSE, OTHER_COSTS = "worse", "other costs: not compared"
NO_GAIN_AT_FIRST, WORSE_AT_FIRST = "no gain on the first seeds", "worse on the first seeds"
AT_FIRST = (NO_GAIN_AT_FIRST, WORSE_AT_FIRST)  # of changes that no more seeds run with
WORDS = (  # in the table's order
    BETTER,
    LITTLE,
    UNKNOWN,
    EQUAL,
    LITTLE_WORSE,
    NO_GAIN_AT_FIRST,
    OTHER_COSTS,
    WORSE_AT_FIRST,
    WORSE,
)
NO_CURE = (WORSE, WORSE_AT_FIRST, OTHER_COSTS)


class Verdict(NamedTuple):
    """word: of WORDS, for the goal. p_value: of its difference, adjusted for the number of changes;
    None if it was not tested. losses: what is worse, names of numbers. difference: of the goal's
    number, with the interval that the p-value has.
    """

    word: str
    p_value: float | None = None
    losses: tuple[str, ...] = ()
    difference: Interval | None = None


def verdicts(changes: Sequence[Tried], reference: Tried, goal: Goal) -> list[Verdict]:
    """The goal's number of the runs with each change, beside the server as it is: better or worse
    if the difference, seed by seed, is distinguishable from zero (Student's t) at LEVEL over all
    changes together (Holm), and LITTLE or LITTLE_WORSE if it is so by less than RELEVANT. A change
    loses what is worse by RELEVANT or more: the goal by its verdict, another number if the 95%
    interval of that difference alone leaves no doubt. A change with the first seeds alone is not
    tested but counts for Holm, else the other p-values would be too small.
    """
    untested = [_word_without_test(tried, reference, goal) for tried in changes]
    tested = [tried for tried, word in zip(changes, untested, strict=True) if word is None]
    differences = [_difference(tried, reference, goal) for tried in tested]
    left_out = [1.0 for word in untested if word in AT_FIRST]
    adjusted = holm([*(of.p_value for of in differences), *left_out])[: len(differences)]
    relevant = _relevant(reference, goal)
    of_tested = (
        _verdict(loss_of(goal.number, difference.mean), p_value, relevant)._replace(
            difference=deciding(difference, p_value)
        )
        for difference, p_value in zip(differences, adjusted, strict=True)
    )
    found = [next(of_tested) if word is None else Verdict(word) for word in untested]
    pairs = zip(found, changes, strict=True)
    return [
        of_it._replace(losses=_losses(of_it, tried, reference, goal.number))
        for of_it, tried in pairs
    ]


def verdict_at_first(tried: Tried, reference: Tried, goal: Goal) -> str | None:
    """The verdict on a change that the first seeds keep from being the best; None if it may be:
    with other seeds it may end all preemptions, or better the goal. Whatever this leaves out makes
    no other change the best, for each is tested as if all had run.
    """
    word = _untested(tried, reference, goal)
    if word is not None and word != EQUAL:  # of these seeds alone
        return word
    relevant = _relevant(reference.with_seeds_of(tried), goal)
    losses = [loss_of(goal.number, of) for of in tried.differences(goal.number, reference) or ()]
    if all(loss > 0 and loss >= relevant for loss in losses):
        return WORSE_AT_FIRST
    is_without_gain = tried.num_preempted > 0 and all(-loss < relevant for loss in losses)
    return NO_GAIN_AT_FIRST if is_without_gain else None


def _word_without_test(tried: Tried, reference: Tried, goal: Goal) -> str | None:
    is_short = len(tried.summaries) < len(reference.summaries)
    return (verdict_at_first if is_short else _untested)(tried, reference, goal)


def _relevant(reference: Tried, goal: Goal) -> float:
    """The difference of the goal's number from which it is a reason for a change."""
    mean = reference.mean(goal.number)
    return 0.0 if mean is None else RELEVANT * abs(mean.mean)


def _losses(verdict: Verdict, tried: Tried, reference: Tried, goal: str) -> tuple[str, ...]:
    """The numbers that a change makes worse; none of runs with other costs."""
    if verdict.word == OTHER_COSTS:
        return ()
    is_tested = verdict.difference is not None
    names = [name for name in NUMBERS if not (is_tested and name == goal)]
    worse = {name for name in names if _is_worse(name, tried, reference)}
    worse |= {goal} if is_tested and verdict.word == WORSE else set()
    return tuple(name for name in NUMBERS if name in worse)


def _is_worse(name: str, tried: Tried, reference: Tried) -> bool:
    difference, mean = tried.less(name, reference), reference.mean(name)
    if difference is None or mean is None or difference.includes_zero:
        return False
    return loss_of(name, difference.mean) > RELEVANT * abs(mean.mean)


def _untested(tried: Tried, reference: Tried, goal: Goal) -> str | None:
    """The verdict that needs no test; None if there is none. A change that rejects more requests is
    worse, for latencies and rates leave these out.
    """
    if costs_of(tried.summaries[0]) != costs_of(reference.summaries[0]):
        return OTHER_COSTS
    is_known = tried.less(goal.number, reference) is not None
    if not is_known or tried.num_rejected > reference.with_seeds_of(tried).num_rejected:
        return WORSE
    return EQUAL if tried.equals(reference) else None


def _difference(tried: Tried, reference: Tried, goal: Goal) -> Interval:
    difference = tried.less(goal.number, reference)
    assert difference is not None
    return difference


def _verdict(loss: float, p_value: float, relevant: float) -> Verdict:
    """loss: by which the goal's number is worse; below 0 it is better."""
    if p_value >= LEVEL:
        return Verdict(UNKNOWN, p_value)
    small, large = (LITTLE_WORSE, WORSE) if loss >= 0 else (LITTLE, BETTER)
    return Verdict(large if abs(loss) >= relevant else small, p_value)
