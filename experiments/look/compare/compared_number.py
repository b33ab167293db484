"""A number of one of the runs that are compared, beside its reference."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ComparedNumber:
    """A number of one run.

    Attributes:
        group: the heading of the number
        quantity: the number's name
        unit: its unit
        run: the run's name
        value: null if the run has none
        change: from the reference; null for the reference itself
        change_unit: `%`, or `points` of a share
        reference: the run that the change is from
    """

    group: str
    quantity: str
    unit: str
    run: str
    value: float | None
    change: float | None = None
    change_unit: str | None = None
    reference: str | None = None
