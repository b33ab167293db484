"""The lines of `testbed mend`."""

from collections.abc import Iterator

from testbed.experiments.mend.change_verdicts import LEVEL, OTHER_COSTS, WORSE
from testbed.experiments.mend.trials import Mending
from testbed.experiments.mend.tried import Tried
from testbed.experiments.runs.quantities import WINDOW
from testbed.experiments.runs.replicated import cells_of
from testbed.run.summaries import costs_of

SMALLEST_P = 0.001  # below it the digits of a p-value say nothing more


def head_of(mending: Mending) -> list[str]:
    """The head of the table of numbers."""
    return ["change", "verdict", "p", *mending.numbers]


def head_of_differences(mending: Mending) -> list[str]:
    """The head of the table of differences."""
    return ["change", *mending.numbers]


def lines_of(mending: Mending) -> Iterator[str]:
    """Above the tables: the costs, what the cells are, and the best change in words."""
    yield f"costs: {costs_of(mending.server.summaries[0])}"
    yield cells_of(str(len(mending.seeds)))
    yield WINDOW
    if mending.num_tested:
        yield (
            f"verdicts: by the differences of {mending.goal.number} on the same seeds (--by names "
            f"another goal), p < {LEVEL:g}, corrected for {mending.num_tested} changes (Holm)"
        )
    yield _conclusion(mending)
    if mending.preempts:
        names = ", ".join(_with_cost(tried, mending) for tried in mending.without_preemptions)
        yield f"without any preemption, on every seed: {names or 'none of the changes'}"


def _with_cost(tried: Tried, mending: Mending) -> str:
    word = mending.verdicts[tried.change].word
    return f"{tried.change.name} ({word})" if word in (WORSE, OTHER_COSTS) else tried.change.name


def _conclusion(mending: Mending) -> str:
    if not mending.preempts:
        return "the server preempts nothing at this load: nothing is to mend (raise the load)"
    if (best := mending.best) is None:
        return _no_option(mending)
    return f"best: {best.change.name}; {_whether_it_keeps_up(best, mending)}"


def _whether_it_keeps_up(best: Tried, mending: Mending) -> str:
    if best.num_overloaded:
        seeds = f"{best.num_overloaded} of {len(mending.seeds)} seeds"
        return f"the server falls behind with it too, on {seeds} (less load, or more GPUs)"
    if mending.server.num_overloaded:
        return "with it the server no longer falls behind"
    return "the server keeps up with and without it"


def _no_option(mending: Mending) -> str:
    name = mending.goal.number
    if mending.better:
        other = mending.better[0].change.name
        return f"no option of vLLM betters {name} distinguishably; {other} would, which it lacks"
    return f"no change betters {name} distinguishably (--seeds N with more, or a longer run)"


def rows_of(mending: Mending) -> list[list[str]]:
    """A row for the server as it is, then one for each change, the best first."""
    first = ["none", "", "", *_cells(mending.server, mending)]
    rest = [
        [_name(tried), *_verdict(tried, mending), *_cells(tried, mending)]
        for tried in mending.tried
    ]
    return [first, *rest]


def _verdict(tried: Tried, mending: Mending) -> tuple[str, str]:
    """The verdict, and its p-value."""
    word, p_value = mending.verdicts[tried.change]
    if p_value is None:
        return word, "-"
    return word, f"{p_value:.2g}" if p_value >= SMALLEST_P else f"< {SMALLEST_P:g}"


def differences_of(mending: Mending) -> list[list[str]]:
    """A row for each change: its numbers less those of the server as it is, seed by seed."""
    return [
        [
            tried.change.name,
            *(str(tried.less(name, mending.server) or "-") for name in mending.numbers),
        ]
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


def _cells(tried: Tried, mending: Mending) -> list[str]:
    return [str(tried.mean(name) or "-") for name in mending.numbers]
