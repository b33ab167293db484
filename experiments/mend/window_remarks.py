"""Remarks on the window that the verdicts of `testbed mend` are of: on servers that fall behind in
it, still fill in its second half, or fill for too much of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from testbed.experiments.mend.change_verdicts import WORSE, WORSE_AT_FIRST
from testbed.experiments.mend.goals import COMPLETED_RATE
from testbed.experiments.mend.server_changes import MOST_SEQUENCES
from testbed.experiments.mend.trials import Mending
from testbed.experiments.mend.tried import Tried
from testbed.experiments.runs.quantities import emptier_server
from testbed.experiments.runs.setting_remarks import Runs, fillings, overloads, remarks
from testbed.run.metrics import WHILE_ARRIVING
from testbed.run.simulate import OVERLOAD
from testbed.run.while_arriving import LONGER

OF_WINDOW = (
    "so the verdicts hold for these arrivals at a server that begins empty: in longer runs the "
    "changes may rank otherwise (less load, or a larger arrivals.duration_s)"
)
NOT_COMPARED = (
    f"{COMPLETED_RATE}: not compared where answers take longer than the first half of the "
    "arrivals: a faster server that holds more requests at a time completes fewer by then, and "
    "more later"
)


def window_remarks(mending: Mending) -> list[str]:
    """The remarks, with what they mean for the verdicts. A change that is worse and falls behind
    would be worse in longer runs too.
    """
    words = {change: verdict.word for change, verdict in mending.verdicts.items()}
    worse = [tried for tried in mending.tried if words[tried.change] in (WORSE, WORSE_AT_FIRST)]
    others = [tried for tried in mending.tried if tried not in worse]
    lines = [*_remarks([mending.server, *others])]
    late = mending.tried and any(of.completes_late for of in [mending.server, *mending.tried])
    return [
        *remarks(overloads, _runs(worse)),
        *([NOT_COMPARED] if late else []),
        *_limit_remarks(mending),
        *lines,
        *([OF_WINDOW] if lines else []),
    ]


def _limit_remarks(mending: Mending) -> Iterator[str]:
    """The larger limit of sequences of a server that falls behind at its own."""
    if mending.more_sequences is not None:
        yield (
            f"falls behind at its limit of sequences on {mending.server.num_overloaded} of "
            f"{len(mending.seeds)} seeds, so more at a time may keep up: "
            f"{MOST_SEQUENCES} {mending.more_sequences}"
        )


def _remarks(servers: Sequence[Tried]) -> Iterator[str]:
    """The remarks of a sweep over the changes, and on the server that fills for longest."""
    yield from remarks(overloads, _runs(servers))
    worst = {name: [max(runs, key=_longer)] for name, runs in _runs(servers).items()}
    yield from remarks(fillings, worst)
    longest = max(servers, key=lambda tried: tried.filling)
    yield from emptier_server(longest.change.name, longest.filling)


def _runs(servers: Sequence[Tried]) -> dict[str, Runs]:
    """The summaries of each change's seeds."""
    return {tried.change.name: tried.summaries for tried in servers}


def _longer(summary: Mapping[str, Any]) -> float:
    """The share of answers that take longer than the first half; 0 of a run that falls behind."""
    if summary.get(OVERLOAD):
        return 0.0
    return (summary.get(WHILE_ARRIVING) or {}).get(LONGER) or 0.0
