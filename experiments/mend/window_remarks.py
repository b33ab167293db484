"""Remarks on the window that the verdicts of `testbed mend` are of: on servers that fall behind in
it, still fill in its second half, or fill for too much of it.
"""

from collections.abc import Iterator, Sequence

from testbed.experiments.mend.change_verdicts import WORSE, WORSE_AT_FIRST
from testbed.experiments.mend.trials import Mending
from testbed.experiments.mend.tried import Tried
from testbed.experiments.runs.points import Point, Setting
from testbed.experiments.runs.quantities import emptier_server
from testbed.run.metrics import WHILE_ARRIVING
from testbed.run.simulate import OVERLOAD
from testbed.run.while_arriving import LONGER

CHANGE = "change"
OF_WINDOW = (
    "so the verdicts hold for these arrivals at a server that begins empty: in longer runs the "
    "changes may rank otherwise (less load, or a larger arrivals.duration_s)"
)


def window_remarks(mending: Mending) -> list[str]:
    """The remarks, with what they mean for the verdicts. A change that is worse and falls behind
    would be worse in longer runs too.
    """
    words = {change: verdict.word for change, verdict in mending.verdicts.items()}
    worse = [tried for tried in mending.tried if words[tried.change] in (WORSE, WORSE_AT_FIRST)]
    others = [tried for tried in mending.tried if tried not in worse]
    lines = [*_remarks([mending.server, *others])]
    return [*_overloads(worse), *lines, *([OF_WINDOW] if lines else [])]


def _remarks(servers: Sequence[Tried]) -> Iterator[str]:
    """The remarks of a sweep over the changes, and on the server that fills for longest."""
    from testbed.experiments.runs.sweep_table import fillings_of  # imports pandas

    yield from _overloads(servers)
    worst = [max(_setting(tried).points, key=_longer) for tried in servers]
    yield from _plain(fillings_of(worst, [CHANGE]))
    longest = max(servers, key=lambda tried: tried.filling)
    yield from emptier_server(longest.change.name, longest.filling)


def _overloads(servers: Sequence[Tried]) -> list[str]:
    from testbed.experiments.runs.sweep_table import overloads_of  # imports pandas

    return _plain(overloads_of([*map(_setting, servers)], [CHANGE]))


def _plain(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix(f"{CHANGE}=") for line in lines]


def _setting(tried: Tried) -> Setting:
    """The change as a setting of a sweep; a point of it is a seed's run."""
    chosen = {CHANGE: tried.change.name}
    return Setting(chosen, [Point(chosen, dict(of), "") for of in tried.summaries])


def _longer(point: Point) -> float:
    """The share of answers that take longer than the first half; 0 of a run that falls behind."""
    if point.summary.get(OVERLOAD):
        return 0.0
    return (point.summary.get(WHILE_ARRIVING) or {}).get(LONGER) or 0.0
