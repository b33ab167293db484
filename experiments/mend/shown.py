"""The lines of `testbed mend`."""

from collections.abc import Iterator

from testbed.experiments.mend.trials import MENDS, NUMBERS, TRADES, Mending, Tried
from testbed.run.summaries import costs_of

HEAD = ("change", "verdict", *NUMBERS)
LESS = ("change", *NUMBERS)


def lines_of(mending: Mending) -> Iterator[str]:
    """Above the tables: the costs, what the cells are, and the best change in words."""
    yield f"costs: {costs_of(mending.server.summaries[0])}"
    yield (
        f"cells: mean of {len(mending.seeds)} seeds ± half of its 95% interval (Student's t); "
        "verdicts by the differences on the same seeds: mends if at least half of the "
        "preemptions end"
    )
    yield _conclusion(mending)


def _conclusion(mending: Mending) -> str:
    if not mending.preempts:
        return "the server preempts nothing at this load: nothing is to mend (raise the load)"
    best = next(iter(mending.tried), None)
    verdict = None if best is None else best.verdict(mending.server)
    if best is None or verdict not in (MENDS, TRADES):
        return "no change ends preemptions distinguishably (--seeds N with more, or a longer run)"
    later = "" if verdict == MENDS else ", and answers later: mean latency grows"
    return f"best: {best.change.name}{later}"


def rows_of(mending: Mending) -> list[list[str]]:
    """A row for the server as it is, then one for each change, the best first."""
    first = ["none", "", *_cells(mending.server)]
    rest = [
        [_name(tried), tried.verdict(mending.server), *_cells(tried)] for tried in mending.tried
    ]
    return [first, *rest]


def differences_of(mending: Mending) -> list[list[str]]:
    """A row for each change: its numbers less those of the server as it is, seed by seed."""
    return [
        [tried.change.name, *(str(tried.less(name, mending.server) or "-") for name in NUMBERS)]
        for tried in mending.tried
    ]


def remarks_of(mending: Mending) -> Iterator[str]:
    """Below the tables: overload, rejections, and changes without a verdict."""
    for tried in (mending.server, *mending.tried):
        if tried.num_overloaded:
            yield (
                f"{tried.change.name}: overloaded on {tried.num_overloaded} of "
                f"{len(mending.seeds)} seeds, so that its latencies grow with the run"
            )
        if tried.num_rejected:
            yield f"{tried.change.name}: {tried.num_rejected} requests rejected"
    for change, reason in mending.failed.items():
        yield f"{change.name}: no verdict: {reason}"


def _name(tried: Tried) -> str:
    note = f" ({tried.change.note})" if tried.change.note else ""
    return f"{tried.change.name}{note}"


def _cells(tried: Tried) -> list[str]:
    return [str(tried.mean(name) or "-") for name in NUMBERS]
