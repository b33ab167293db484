"""The numbers of a run, where its summary stores each, and how they are written."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from testbed.run.while_arriving import LONGER

WINDOW = (
    "2nd half: what completes, per second, in the second half of the arrivals, of sessions in that "
    "of their starts (the first one fills the server); with drain: of the whole run, until its "
    "last answer; the other columns: of the whole run"
)
BEYOND_P99 = 100  # requests of which one is beyond it
NOTED, MOST_KNOWN = 0.01, 0.25  # shares of the arrivals that fill a server, of which a rate tells
MOST_FILLING = 0.05  # of the arrivals


class Quantity(NamedTuple):
    """A row of quantities.csv: one number of a summary.

    keys: the path to it in the summary, joined by dots. whole: the path to the number that it is a
    share of, or empty. place, title: rank and short name of a main number; empty for others. Shares
    in summaries are fractions of 1, shown in percent.
    """

    group: str
    name: str
    unit: str
    keys: str
    whole: str
    place: str
    title: str

    @property
    def label(self) -> str:
        """Its full name with group and unit."""
        return f"{self.group}, {self.name} ({self.unit})"

    @property
    def is_share(self) -> bool:
        """True if it is shown in percent, and its differences in percentage points."""
        return self.unit.startswith("%")

    def value(self, summary: Mapping[str, Any]) -> float | None:
        """Its value in a summary; None if the summary lacks it or had nothing to average."""
        value, whole = _at(summary, self.keys), _at(summary, self.whole) if self.whole else 1.0
        if value is None or not whole:
            return None
        return value / whole * (100 if self.is_share else 1)

    def change(self, value: float | None, reference: float | None) -> float | None:
        """The change from the reference: percentage points for shares, else percent.

        None if one of the numbers is missing, or if the reference is 0 and the value is not.
        """
        if value is None or reference is None:
            return None
        if self.is_share:
            return value - reference
        if reference == 0:
            return 0.0 if value == 0 else None
        return 100 * (value / reference - 1)


@cache
def quantities() -> list[Quantity]:
    """All numbers in the order in which they are shown."""
    with Path(__file__).with_name("quantities.csv").open(encoding="utf-8") as file:
        return [Quantity(**row) for row in csv.DictReader(file)]


def main_quantities(all_quantities: Iterable[Quantity]) -> list[Quantity]:
    """The numbers that decide between servers, the most important first."""
    ranked = [quantity for quantity in all_quantities if quantity.place]
    return sorted(ranked, key=lambda quantity: int(quantity.place))


def main_numbers(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The main numbers of each summary as text, by title, without those that no summary has."""
    texts = {}
    for quantity in main_quantities(quantities()):
        values = [quantity.value(summary) for summary in summaries]
        if any(value is not None for value in values):
            texts[quantity.title] = [number(value) for value in values]
    return texts


def _at(summary: Mapping[str, Any], keys: str) -> float | None:
    """The number at a path of keys; None if there is none."""
    value: Any = summary
    for key in keys.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def still_filling(rates: Mapping[str, Any]) -> str:
    """The remark on rates of a server that is not filled."""
    return (
        f"{percent(rates[LONGER])} of the answers take longer than the first half of the arrivals, "
        "so that this server still fills in the second one (raise arrivals.duration_s)"
    )


def short_runs(server: str, filling: float) -> list[str]:
    """The remark that a highest rate is of short runs, if these are. filling: the share of the
    arrivals in which the server, empty at first, filled. The rate of longer runs is lower by about
    as much in simulations of 10 seeds, and by more in some: no bound.
    """
    if filling < NOTED:
        return []
    head = f"short runs: {server}, empty at first, fills for {_rounded(filling)} of the arrivals"
    if filling > MOST_KNOWN:
        return [f"{head}, so the rate says little of longer runs (raise arrivals.duration_s)"]
    return [
        f"{head}, so the rate is too high, by about as much (an estimate, no bound; raise "
        f"arrivals.duration_s: {filling / NOTED:.2g} times make it {NOTED:.0%})"
    ]


def unlike_fillings(fillings: Sequence[float]) -> list[str]:
    """The remark that highest rates are too high by unlike shares, and so are their differences."""
    least, most = min(fillings), max(fillings)
    if most - least < NOTED:
        return []
    return [
        f"short runs: the servers fill for {_rounded(least)} to {_rounded(most)} of the arrivals, "
        "so part of the differences is of rates that are too high by unlike shares (raise "
        "arrivals.duration_s)"
    ]


def emptier_server(server: str, filling: float) -> list[str]:
    """The remark that latencies are of short runs, if these are. filling: the share of the arrivals
    in which the server, empty at first, filled.
    """
    if filling <= MOST_FILLING:
        return []
    return [
        f"short runs: {server} fills for {_rounded(filling)} of the arrivals, so that latencies "
        "are of an emptier server (raise arrivals.duration_s)"
    ]


def _rounded(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def few_requests(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """The remark that a run of these has so few requests that none of them is beyond p99."""
    counts = [int(summary["requests"]["finished"]) for summary in summaries]
    fewest = min(filter(None, counts), default=BEYOND_P99)
    if fewest >= BEYOND_P99:
        return []
    return [
        f"p99: of {fewest} requests none is beyond it, so that it is about the largest value "
        "(a longer run has more of them)"
    ]


def number(value: float | None) -> str:
    """Three or four significant digits, or a dash."""
    if value is None:
        return "-"
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A fraction as a percentage with one decimal, or a dash."""
    return "-" if share is None else f"{100 * share:.1f}%"
