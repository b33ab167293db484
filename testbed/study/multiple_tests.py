"""Several tests at once: of eleven changes that do nothing, tests at 5% each find one better or
worse in 43% of the searches.
"""

from collections.abc import Sequence

from testbed.study.replications import CONFIDENCE, Interval, student_t


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted for their number, in the same order (Holm, 1979): refusing every
    hypothesis below a level refuses a true one with at most that probability.
    """
    count, largest = len(p_values), 0.0
    adjusted = [0.0] * count
    ascending = sorted(range(count), key=p_values.__getitem__)
    for rank, index in enumerate(ascending):
        largest = max(largest, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def deciding(difference: Interval, adjusted: float) -> Interval:
    """A difference with the interval of its adjusted p-value: it includes zero exactly if that is
    not below 1 - CONFIDENCE, however many were tested beside it.
    """
    if not difference.half_width or not difference.p_value:
        return difference
    num_tests, degrees = adjusted / difference.p_value, difference.num_values - 1
    wider = student_t(degrees, 1 - (1 - CONFIDENCE) / num_tests) / student_t(degrees)
    return difference._replace(half_width=wider * difference.half_width)
