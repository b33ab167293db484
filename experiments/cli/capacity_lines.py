"""The lines of `testbed capacity`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from testbed.experiments.runs.part_words import part_words
from testbed.study.replications import Interval

if TYPE_CHECKING:
    from testbed.experiments.cli.json_answers import CapacityAnswer, SeedCapacity, ServerCapacity

LONGER = "raise arrivals.duration_s, until this line goes"


def lines_of(answer: "CapacityAnswer", varied: str = "") -> list[str]:
    """The range, how it was found, and the error of the costs that it rests on. varied: what was
    varied for the intervals, in words.
    """
    from testbed.experiments.runs.quantities import short_runs  # which imports NumPy

    rates = [of_seed.rate for of_seed in answer.seeds]
    mean = Interval(answer.rate, answer.half_width, len(rates))
    shown = [float(f"{rate:.3g}") for rate in rates]
    text = f"about {mean.mean:.2g} req/s"
    how = "one seed, whose error is not known (--seeds 3 gives a range)"
    if len(rates) > 1:
        text = f"{mean} req/s"
        how = (
            f"95% interval of {len(rates)} seeds (Student's t), which found {min(shown):g} to "
            f"{max(shown):g} in steps of {answer.step:.2g}"
        )
    needed = f"{100 * answer.share:g}% of the requests meet the SLO"
    lines = [part_words(answer.about)] if answer.about else []
    lines.append(f"capacity: {text} at which {needed}: {how}{_by_costs(answer)}")
    if answer.too_long:
        too_long = f"{100 * answer.too_long:.3g}% of the requests"
        lines.append(f"  {too_long} are longer than the server takes: it rejects them at any rate")
    short = short_runs("the server", answer.filling)
    lines += [f"  {line}" for line in short]
    for of_seed in answer.seeds:
        lines.append(_seed_line(of_seed))
        if of_seed.overload:
            lines.append(f"    overloaded, in too short a run: {of_seed.overload} ({LONGER})")
    lines += _sensitivity_lines(answer, varied)
    lines += [f"  {answer.first_tokens}"] if answer.first_tokens else []
    if answer.future_read:
        lines.insert(0, f"reads the future, as no real server can: {answer.future_read}")
    return [*lines, *([f"simulated; costs: {answer.costs}"] if answer.costs else [])]


OF_WORKLOAD = (
    "differences: intervals of the random workload alone; the errors of the costs come on top, and "
    "may be larger"
)


def compared_lines(servers: Sequence["ServerCapacity"]) -> list[str]:
    """The lines of each server's capacity, then the differences from the first one."""
    from testbed.experiments.plan.cost_errors import not_comparable
    from testbed.experiments.runs.quantities import unlike_fillings
    from testbed.study.replications import MORE_SEEDS

    first, *others = servers
    num_seeds = len(first.capacity.seeds)
    less = [Interval(of.difference, of.difference_half_width, num_seeds) for of in others]
    lines = [f"{first.command}:", *lines_of(first.capacity)]
    for server in others:
        lines += [f"{server.command}:", *lines_of(server.capacity)]
    for server, found in zip(others, less, strict=True):
        pair = f"{server.command} less {first.command}"
        lines.append(f"{pair}, on the same seeds: {found.as_difference('req/s')}")
        if not server.is_comparable:
            lines.append(f"{pair}: {not_comparable(server.cost_error)}")
    pairs = zip(others, less, strict=True)
    if num_seeds > 1 and any(of.is_comparable and found.includes_zero for of, found in pairs):
        lines.append(MORE_SEEDS)
    fillings = [server.capacity.filling for server in servers]
    return [*lines, OF_WORKLOAD, *unlike_fillings(fillings)]


def _seed_line(of_seed: "SeedCapacity") -> str:
    """The rate of a seed, and what the server does at it."""
    inside = f"{100 * of_seed.share_inside:.1f}% of the requests inside"
    line = f"  seed {of_seed.seed}: {of_seed.rate:.3g} req/s, {inside}"
    if of_seed.completed is None or of_seed.arrived is None:
        return line
    return (
        f"{line}; in the second half of the arrivals {of_seed.arrived:.3g} req/s arrive and "
        f"{of_seed.completed:.3g} complete"
    )


def _by_costs(answer: "CapacityAnswer") -> str:
    """The range of the rate over the errors of the costs, or that it is not known."""
    for found in answer.intervals:
        if found.metric == "rate":
            rates = f"{found.lowest:.3g} to {found.highest:.3g} req/s"
            return f"; by the error of the costs {rates} (seed {found.seed})"
    return "; the error of the costs comes on top (--sensitivity)" if answer.costs else ""


def _sensitivity_lines(answer: "CapacityAnswer", varied: str) -> list[str]:
    """The interval of the share inside, with what was varied."""
    return [
        f"how sensitive: {100 * found.lowest:.1f} to {100 * found.highest:.1f}% inside at the rate "
        f"found (seed {found.seed}): {varied}"
        for found in answer.intervals
        if found.metric == "share_inside"
    ]
