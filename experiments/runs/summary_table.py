"""The numbers of a run, each with the place where its summary has it, and tables for the
terminal.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from testbed.description import ENGINES, RUN
from testbed.metrics import in_words
from testbed.run import OVERLOAD, PROFILE, STOPPED


class Quantity(NamedTuple):
    """A row of quantities.csv: a number of a summary by its keys; `whole`: the keys of the number
    that it is a share of. Shares are of 1. The main numbers have a place, the most important first,
    and a title of their own.
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
        """All that a row says of it."""
        return f"{self.group}, {self.name} ({self.unit})"

    @property
    def is_share(self) -> bool:
        """Whether it is in percent, and differences are in points."""
        return self.unit.startswith("%")

    def value(self, summary: Mapping[str, Any]) -> float | None:
        """The number of a run. None: the summary lacks it, or there was nothing to average."""
        value, whole = _at(summary, self.keys), _at(summary, self.whole) if self.whole else 1.0
        if value is None or not whole:
            return None
        return value / whole * (100 if self.is_share else 1)

    def change(self, value: float | None, reference: float | None) -> float | None:
        """In points for shares, else in percent. None: no number to compare; against a count of 0,
        only 0 has one.
        """
        if value is None or reference is None:
            return None
        if self.is_share:
            return value - reference
        if reference == 0:
            return 0.0 if value == 0 else None
        return 100 * (value / reference - 1)


STOPPED_TEXT = (
    "the mean latency of all is at least {} s/token; what follows is of those that ended before"
)


@cache
def quantities() -> list[Quantity]:
    """All numbers in the order in which they are shown."""
    with Path(__file__).with_name("quantities.csv").open(encoding="utf-8") as file:
        return [Quantity(**row) for row in csv.DictReader(file)]


def main(all_quantities: Iterable[Quantity]) -> list[Quantity]:
    """What decides between servers, the most important first."""
    return sorted((one for one in all_quantities if one.place), key=lambda one: int(one.place))


def main_numbers(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The main numbers that any of the summaries has, as text, by title."""
    values = {
        one.title: [one.value(summary) for summary in summaries] for one in main(quantities())
    }
    return {title: [*map(number, found)] for title, found in values.items() if set(found) != {None}}


def _at(summary: Mapping[str, Any], keys: str) -> float | None:
    value: Any = summary
    for key in keys.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def summary_table(summary: dict[str, Any]) -> Group:
    """A run's summary for the terminal; before it the source and tested error of costs, and the
    scheduler's note.
    """
    requests, rates, means = summary["requests"], summary["throughput"], summary["batch"]
    batched = (
        f"{number(means['mean_per_iteration'])} per iteration, {number(means['mean_over_time'])} "
        f"over time"
    )
    preemptions, counters, slo = summary["preemptions"], summary["counters"], summary["slo"]
    stand_in, stopped = (summary.get(PROFILE) or {}).get("all_reduce"), summary.get(STOPPED)
    rows = [
        *described(summary.get(RUN, {})).items(),
        ("requests", ", ".join(f"{value:,} {name}" for name, value in requests.items())),
        *([("stopped early", STOPPED_TEXT.format(number(stopped)))] if stopped is not None else []),
        *([("overloaded", in_words(summary[OVERLOAD]))] if summary.get(OVERLOAD) else []),
        (
            "simulated time",
            f"{summary['simulated_s']:,.1f} s, {summary['iterations']:,} iterations",
        ),
        (
            "throughput",
            f"{number(rates['requests_per_s'])} req/s, {number(rates['output_tokens_per_s'])} "
            f"tokens/s",
        ),
        ("normalized latency", _spread(summary["normalized_latency_s_per_token"], "s/token")),
        ("time to first token", _spread(summary["ttft_s"], "s")),
        ("time per output token", _spread(summary["tpot_s"], "s")),
        ("end to end", _spread(summary["e2e_s"], "s")),
        *(
            [("inside the objectives", _goodput(slo))]
            if (slo["ttft_s"], slo["tpot_s"]) != (None, None)
            else []
        ),
        ("batched requests", batched),
        ("memory per iteration", _memory(summary)),
        ("preemptions", ", ".join(f"{value:,} {name}" for name, value in preemptions.items())),
        *([("counted by the policy", _counted(counters))] if counters else []),
        *([("all-reduces", stand_in)] if stand_in else []),
    ]
    table = Table("what", "value", title="Summary", title_justify="left", show_header=False)
    for row in rows:
        table.add_row(*row)
    costs, note = costs_of(summary), summary.get(RUN, {}).get("scheduler_note")
    first = [f"costs: {costs}"] * bool(costs) + [f"scheduler: {note}"] * bool(note)
    return Group(*map(Text, first), table, *_engines_table(summary))


ENGINE_COLUMNS = (
    "engine",
    "requests",
    "moved away",
    "mean TTFT (s)",
    "p99 TTFT (s)",
    "busy (s)",
    "prompt tokens found",
)


def engine_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """A row of text for each engine of a fleet, by ENGINE_COLUMNS; none for one engine."""
    return [_engine_row(name, one) for name, one in summary.get(ENGINES, {}).items()]


def _engine_row(name: str, engine: Mapping[str, Any]) -> list[str]:
    requests, ttft, counters = engine["requests"], engine["ttft_s"], engine["counters"]
    tokens = counters.get("tokens")
    found = counters["hit_tokens"] / tokens if tokens else None
    counts = f"{requests['arrived']:,}", f"{requests['moved']:,}"
    times = number(ttft["mean"]), number(ttft["p99"]), number(engine["busy_s"])
    return [name, *counts, *times, percent(found)]


def _engines_table(summary: Mapping[str, Any]) -> list[Table]:
    rows = engine_rows(summary)
    if not rows:
        return []
    table = Table(*ENGINE_COLUMNS, title="Engines", title_justify="left")
    for row in rows:
        table.add_row(*row)
    return [table]


def costs_of(summary: Mapping[str, Any]) -> str:
    """The source and the tested error of a simulated run's costs; empty for a run on a GPU."""
    run = summary.get(RUN, {})
    if "engine" in summary or "cost_error" not in run:
        return ""
    return f"{run['cost']}; error when tested: {run['cost_error']}"


def described(run: Mapping[str, Any]) -> dict[str, str]:
    """What a summary says that its run was, in a few words; nothing of a summary that does not say
    it.
    """
    if not run:
        return {}
    of = " of one layer" if run.get("slot_layers") == 1 else ""
    blocks = (
        f", {run['pool_blocks']:,} blocks of {run['block_size']} tokens"
        if run["pool_blocks"]
        else ""
    )
    return {
        "model, server": f"{run['model']} on {run['num_gpus']} x {run['gpu']} ({run['server']})",
        "KV pool": f"{run['pool_slots']:,} slots{of}{blocks}, {number(run['pool_gib'])} GiB",
        **_fleet(run),
        "policy": run["policy"],
        "scheduler": f"{run['scheduler']}, {run['preemption']}",
        "costs": run["cost"],
        "workload": f"{run['trace']}, {run['arrivals']}, seed {run['seed']}",
    }


def _fleet(run: Mapping[str, Any]) -> dict[str, str]:
    if "replicas" not in run:
        return {}
    faults = f"; {run['faults']}" if "faults" in run else ""
    return {"engines": f"{run['replicas']} behind {run['router']}{faults}"}


def _memory(summary: dict[str, Any]) -> str:
    """The pool by kind; slots that are not held are named free where they are interchangeable, as
    in a paged pool.
    """
    shares = {name: part["per_iteration"] for name, part in summary["memory"].items()}
    free, cached = (summary["memory_free"][name]["per_iteration"] for name in ("free", "cached"))
    largest = summary["memory_free"]["largest_free"]["per_iteration"]
    if free is not None and free == shares["external"] == largest:
        del shares["external"]
        shares |= {"cached": cached, "free": free - cached} if cached else {"free": free}
    return ", ".join(f"{name.replace('_', ' ')} {percent(share)}" for name, share in shares.items())


def _goodput(slo: dict[str, float | None]) -> str:
    limits = [
        f"{name} {number(slo[key])} s"
        for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"))
        if slo[key]
    ]
    inside, rate = percent(slo["share_inside"]), number(slo["goodput_requests_per_s"])
    return f"{inside} of the requests, {rate} req/s ({', '.join(limits)})"


def _counted(counters: dict[str, float]) -> str:
    counts = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in counters.items())
    if not counters.get("blocks") or "hit_blocks" not in counters:
        return counts
    return (
        f"{percent(counters['hit_blocks'] / counters['blocks'])} of all prompt blocks found; "
        f"{counts}"
    )


def _spread(values: dict[str, float | None], unit: str) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items()) + f" {unit}"


def number(value: float | None) -> str:
    """Three or four significant digits, or a dash."""
    return "-" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A fraction as a percentage with one decimal, or a dash."""
    return "-" if share is None else f"{100 * share:.1f}%"
