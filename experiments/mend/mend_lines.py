"""The lines of `testbed mend`."""

from collections.abc import Iterator, Sequence

from testbed.experiments.cli.capacity_lines import OF_WORKLOAD
from testbed.experiments.mend.change_verdicts import (
    BETTER,
    LEVEL,
    NO_CURE,
    OTHER_COSTS,
    RELEVANT,
)
from testbed.experiments.mend.goals import PREEMPTIONS
from testbed.experiments.mend.trials import Mending
from testbed.experiments.mend.tried import Tried
from testbed.experiments.mend.window_remarks import window_remarks
from testbed.experiments.runs.quantities import WINDOW, few_requests
from testbed.experiments.runs.replicated import cells_of
from testbed.run.summaries import costs_of

UNSEEN = 3.0  # events whose absence has a probability of 5% (Poisson)
SMALLEST_P = 0.001  # below it the digits of a p-value say nothing more


def head_of(mending: Mending) -> list[str]:
    """The head of the table of numbers."""
    return ["change", "verdict", "p", "makes worse", "seeds", *mending.numbers]


def head_of_differences(mending: Mending) -> list[str]:
    """The head of the table of differences."""
    return ["change", *mending.numbers]


def lines_of(mending: Mending) -> Iterator[str]:
    """Above the tables: the costs, what the cells are, and the best change in words."""
    yield f"costs: {costs_of(mending.server.summaries[0])}"
    yield cells_of(str(len(mending.seeds)))
    yield WINDOW
    yield from few_requests(mending.server.summaries)
    yield from window_remarks(mending)
    if mending.left_out:
        yield _first_seeds(mending)
    if mending.num_tested:
        yield (
            f"verdicts: by the differences of {mending.goal.number} on the same seeds (--by names "
            f"another goal), p < {LEVEL:g}, p and interval corrected for {mending.num_tested} "
            "changes (Holm)"
        )
        yield (
            f"makes worse: by {RELEVANT:.0%} or more, {mending.goal.number} by the verdict, others "
            "by that difference's own 95% interval"
        )
        yield OF_WORKLOAD
    if mending.tried:
        yield (
            "best (first in the table, if there is one): ends all preemptions and makes "
            f"nothing worse, else betters {mending.goal.number} most, whatever it makes worse; of "
            "preemptions that are not distinguishable from none: ends all and betters it most"
        )
    yield from _rejections(mending)
    yield _conclusion(mending)
    if mending.preempts:
        of_changes = _named(mending.without_preemptions, mending)
        yield f"without any preemption on the seeds that each ran with: {of_changes}"
    if mending.preempts and mending.server.num_overloaded:
        of_changes = _named(mending.without_overload, mending)
        yield f"keeping up with the load on the seeds that each ran with: {of_changes}"


def _first_seeds(mending: Mending) -> str:
    few, number = len(mending.left_out[0].summaries), mending.goal.number
    return (
        f"first seeds: every change ran with {few}, and with all {len(mending.seeds)} if it may be "
        f"the best: not worse in {number} by {RELEVANT:.0%} or more on each of the {few}, and "
        f"better by that on one of them or without a preemption; --seeds {few} stops there"
    )


def _named(changes: Sequence[Tried], mending: Mending) -> str:
    return ", ".join(_with_cost(tried, mending) for tried in changes) or "none of the changes"


def _with_cost(tried: Tried, mending: Mending) -> str:
    word = mending.verdicts[tried.change].word
    worse = _losses(tried, mending) if word not in NO_CURE else ""
    cost = f"{word}; {worse}" if worse else word
    return f"{tried.change.name} ({cost})"


def _losses(tried: Tried, mending: Mending) -> str:
    """The numbers that a change makes worse, with the sizes of their differences."""
    of_losses = []
    for name in mending.verdicts[tried.change].losses:
        if difference := mending.difference(tried, name):
            size = difference._replace(mean=abs(difference.mean))
            of_losses.append(f"{name.partition(',')[0]} by {size}")
    return f"worse {', '.join(of_losses)}" if of_losses else ""


def _conclusion(mending: Mending) -> str:
    if not mending.preempts:
        return _nothing_preempted(mending)
    if (best := mending.best) is None:
        return _no_option(mending)
    word, name = mending.verdicts[best.change].word, mending.goal.number
    left = f"leaves {_left(best, mending)}"
    effect = left if best.num_preempted else "ends the preemptions, on every seed"
    rest = [*filter(None, [_losses(best, mending), _whether_it_keeps_up(best, mending)])]
    difference, rivals = mending.difference(best, name), mending.rivals
    stays = "most preemptions stay; " if _leaves_most(best, mending) else ""
    head = f"{_overload(best, mending)}{stays}best"
    if rivals:
        head += " of those told apart" if word == BETTER else " without preemptions"
        names = ", ".join(_with_difference(of, mending) for of in rivals)
        rest.append(f"as good or better may be {names}")
    if second := mending.best_harmless:
        rest.append(f"best that makes nothing worse: {_with_difference(second, mending)}")
    return f"{head}: {best.change.name} {effect}; {name}: {word} ({difference}); {'; '.join(rest)}"


def _overload(best: Tried, mending: Mending) -> str:
    """The load that the best change does not keep up with: it stays if the server does not either,
    else it begins with the change; empty without it.
    """
    if not _falls_behind(best, mending):
        return ""
    num_seeds, without = len(mending.seeds), mending.server.num_overloaded
    keeping_up = [
        of.change.name
        for of in mending.without_overload
        if of.change.is_proposed and mending.verdicts[of.change].word not in NO_CURE
    ]
    remedy = ", or ".join(["less load", *keeping_up[:1], "more GPUs: testbed plan"])
    return (
        f"overload {'stays' if _falls_behind(mending.server, mending) else 'begins'}: the server "
        f"falls behind on {without} of {num_seeds} seeds, with the best change on "
        f"{best.num_overloaded} ({remedy}); "
    )


def _falls_behind(tried: Tried, mending: Mending) -> bool:
    """Whether it falls behind on half of the seeds or more."""
    return 2 * tried.num_overloaded >= len(mending.seeds)


def _leaves_most(tried: Tried, mending: Mending) -> bool:
    left, before = tried.mean(PREEMPTIONS), mending.server.mean(PREEMPTIONS)
    return left is not None and before is not None and 2 * left.mean > before.mean


def _with_difference(tried: Tried, mending: Mending) -> str:
    difference = str(mending.difference(tried, mending.goal.number))
    return f"{tried.change.name} ({'; '.join(filter(None, [difference, _losses(tried, mending)]))})"


def _left(tried: Tried, mending: Mending) -> str:
    return f"{tried.mean(PREEMPTIONS)} of {mending.server.mean(PREEMPTIONS)} {PREEMPTIONS}"


def _nothing_preempted(mending: Mending) -> str:
    """The rate that a server without a preemption does not exceed, if they come one by one."""
    most = float(f"{3600 * UNSEEN / mending.arrivals_s:.2g}")
    rest = "nothing is to mend at this load"
    if mending.more_sequences is not None:
        rest = "no preemption is to mend at this load, but the limit of sequences"
    return (
        f"the server preempts nothing in {mending.arrivals_s:,.0f} s of arrivals, so less than "
        f"{most:,g} times an hour (95%): {rest}. A server that preempts "
        "more has other lengths, rates or a smaller pool (trace=, arrivals.rate=, "
        "--num-gpu-blocks-override, --seeds)"
    )


def _whether_it_keeps_up(best: Tried, mending: Mending) -> str:
    """Empty if the overload has been said."""
    if _falls_behind(best, mending):
        return ""
    if best.num_overloaded:
        without, num_seeds = mending.server.num_overloaded, len(mending.seeds)
        return (
            f"the server falls behind with it on {best.num_overloaded} of {num_seeds} seeds, "
            f"without it on {without} (less load, or more GPUs)"
        )
    if best.still_fills or mending.server.still_fills:
        return (
            "the runs are too short to tell whether the server keeps up (raise arrivals.duration_s)"
        )
    if mending.server.num_overloaded:
        return "with it the server no longer falls behind"
    return "the server keeps up with and without it"


def _no_option(mending: Mending) -> str:
    name = mending.goal.number
    gain = f"betters {name} by {RELEVANT:.0%} or more"
    remedy = " (--seeds N with more, or a longer run)"
    if proposed := [of for of in mending.better if of.change.is_proposed]:
        leaving = proposed[0]
        gain = "ends them and " + gain
        remedy += (
            f"; {leaving.change.name} betters {name} and leaves {_left(leaving, mending)}, which "
            "are not distinguishable from none"
        )
    elif mending.better:
        remedy = f"; {_name(mending.better[0])} would better it"
    return (
        f"{_too_few(mending)}none of the options tried ends the preemptions and makes nothing "
        f"worse, or {gain}, distinguishably{remedy}{_fewest(mending, *proposed)}"
    )


def _too_few(mending: Mending) -> str:
    """The reason why no change can be shown to end the server's preemptions, if there is one."""
    if mending.preempts_distinguishably:
        return ""
    seen = f"{mending.server.num_preempted} on {len(mending.seeds)} seeds"
    return f"too few preemptions ({seen}) to show that a change ends them: "


def _fewest(mending: Mending, *said: Tried) -> str:
    """The change with the fewest preemptions, which is not the best; empty if it is the first of
    those that have been said.
    """
    if (fewest := mending.fewest) is None or fewest in said[:1]:
        return ""
    return f"; fewest preemptions seen: {fewest.change.name}, {_left(fewest, mending)}"


def rows_of(mending: Mending) -> list[list[str]]:
    """A row for the server as it is, then one for each change, the best first."""
    first = ["none", "", "", "", *_cells(mending.server, mending)]
    rest = [
        [_name(tried), *_verdict(tried, mending), *_cells(tried, mending)]
        for tried in mending.best_first
    ]
    return [first, *rest]


def _verdict(tried: Tried, mending: Mending) -> tuple[str, str, str]:
    """The verdict, its p-value, and the names of what gets worse."""
    word, p_value, losses, _ = mending.verdicts[tried.change]
    names = ", ".join(name.partition(",")[0] for name in losses)
    if p_value is None:
        return word, "-", names
    return word, f"{p_value:.2g}" if p_value >= SMALLEST_P else f"< {SMALLEST_P:g}", names


def differences_of(mending: Mending) -> list[list[str]]:
    """A row for each change: its numbers less those of the server as it is, seed by seed."""
    return [
        [
            tried.change.name,
            *(str(mending.difference(tried, name) or "-") for name in mending.numbers),
        ]
        for tried in mending.best_first
    ]


def _rejections(mending: Mending) -> Iterator[str]:
    """The requests that the server rejects, and each change that rejects another number."""
    server = mending.server
    others = [
        of for of in mending.tried if of.num_rejected != server.with_seeds_of(of).num_rejected
    ]
    for tried in (mending.server, *others):
        if tried.num_rejected or others:
            yield (
                f"{tried.change.name}: {tried.num_rejected} of {tried.num_arrived} requests "
                "rejected, which latencies leave out"
            )


def remarks_of(mending: Mending) -> Iterator[str]:
    """Below the tables: changes without a verdict, or that are not compared."""
    for change, verdict in mending.verdicts.items():
        if verdict.word == OTHER_COSTS:
            yield (
                f"{change.name}: its costs are of another source than the server's, whose error "
                "would be part of each difference; `testbed run -m --from-vllm WITHOUT --from-vllm "
                "WITH` compares two commands, and says both sources"
            )
    for change, reason in mending.failed.items():
        yield f"{change.name}: no verdict: {reason}"


def _name(tried: Tried) -> str:
    note = f" ({tried.change.note})" if tried.change.note else ""
    return f"{tried.change.name}{note}"


def _cells(tried: Tried, mending: Mending) -> list[str]:
    """The seeds and the means."""
    means = (tried.mean(name) for name in mending.numbers)
    return [str(len(tried.summaries)), *("-" if mean is None else str(mean) for mean in means)]
