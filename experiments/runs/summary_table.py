"""Tables for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from testbed.description import RUN
from testbed.metrics import in_words
from testbed.run import OVERLOAD, PROFILE, STOPPED


def summary_table(summary: dict[str, Any]) -> Group:
    """A run's summary for the terminal; before it the source and tested error of costs, and the scheduler's note."""
    table = Table(title="Summary", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value")
    for what, value in _summary_rows(summary):
        table.add_row(what, value)
    costs, note = costs_of(summary), summary.get(RUN, {}).get("scheduler_note")
    first = [f"costs: {costs}"] * bool(costs) + [f"scheduler: {note}"] * bool(note)
    return Group(*map(Text, first), table)


def costs_of(summary: Mapping[str, Any]) -> str:
    """The source and the tested error of a simulated run's costs; empty for a run on a GPU."""
    run = summary.get(RUN, {})
    if "engine" in summary or "cost_error" not in run:
        return ""
    return f"{run['cost']}; error when tested: {run['cost_error']}"


def _summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    requests, rates, batch = summary["requests"], summary["throughput"], summary["batch"]
    preemptions, counters, slo = summary["preemptions"], summary["counters"], summary["slo"]
    stand_in = (summary.get(PROFILE) or {}).get("all_reduce")
    return [
        *described(summary.get(RUN, {})).items(),
        ("requests", ", ".join(f"{value:,} {name}" for name, value in requests.items())),
        *([("stopped early", _stopped(summary[STOPPED]))] if summary.get(STOPPED) is not None else []),
        *([("overloaded", in_words(summary[OVERLOAD]))] if summary.get(OVERLOAD) else []),
        ("simulated time", f"{summary['simulated_s']:,.1f} s, {summary['iterations']:,} iterations"),
        ("throughput", f"{number(rates['requests_per_s'])} req/s, {number(rates['output_tokens_per_s'])} tokens/s"),
        ("normalized latency", _spread(summary["normalized_latency_s_per_token"], "s/token")),
        ("time to first token", _spread(summary["ttft_s"], "s")),
        ("time per output token", _spread(summary["tpot_s"], "s")),
        ("end to end", _spread(summary["e2e_s"], "s")),
        *([("inside the objectives", _goodput(slo))] if (slo["ttft_s"], slo["tpot_s"]) != (None, None) else []),
        (
            "batched requests",
            f"{number(batch['mean_per_iteration'])} per iteration, {number(batch['mean_over_time'])} over time",
        ),
        ("memory per iteration", _memory(summary)),
        ("preemptions", ", ".join(f"{value:,} {name}" for name, value in preemptions.items())),
        *([("counted by the policy", _counted(counters))] if counters else []),
        *([("all-reduces", stand_in)] if stand_in else []),
    ]


def described(run: Mapping[str, Any]) -> dict[str, str]:
    """What a summary says that its run was, in a few words; nothing of a summary that does not say it."""
    if not run:
        return {}
    of = " of one layer" if run.get("slot_layers") == 1 else ""
    blocks = f", {run['pool_blocks']:,} blocks of {run['block_size']} tokens" if run["pool_blocks"] else ""
    return {
        "model, server": f"{run['model']} on {run['num_gpus']} x {run['gpu']} ({run['server']})",
        "KV pool": f"{run['pool_slots']:,} slots{of}{blocks}, {number(run['pool_gib'])} GiB",
        "policy": run["policy"],
        "scheduler": f"{run['scheduler']}, {run['preemption']}",
        "costs": run["cost"],
        "workload": f"{run['trace']}, {run['arrivals']}, seed {run['seed']}",
    }


def _stopped(at_least: float) -> str:
    return f"the mean latency of all is at least {number(at_least)} s/token; what follows is of those that ended before"


def _memory(summary: dict[str, Any]) -> str:
    """The pool by kind; slots that are not held are named free where they are interchangeable, as in a paged pool."""
    shares = {name: part["per_iteration"] for name, part in summary["memory"].items()}
    free, cached = (summary["memory_free"][name]["per_iteration"] for name in ("free", "cached"))
    largest = summary["memory_free"]["largest_free"]["per_iteration"]
    if free is not None and free == shares["external"] == largest:
        del shares["external"]
        shares |= {"cached": cached, "free": free - cached} if cached else {"free": free}
    return ", ".join(f"{name.replace('_', ' ')} {percent(share)}" for name, share in shares.items())


def _goodput(slo: dict[str, float | None]) -> str:
    limits = [f"{name} {number(slo[key])} s" for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")) if slo[key]]
    inside, rate = percent(slo["share_inside"]), number(slo["goodput_requests_per_s"])
    return f"{inside} of the requests, {rate} req/s ({', '.join(limits)})"


def _counted(counters: dict[str, float]) -> str:
    counts = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in counters.items())
    if not counters.get("blocks") or "hit_blocks" not in counters:
        return counts
    return f"{percent(counters['hit_blocks'] / counters['blocks'])} of all prompt blocks found; {counts}"


def _spread(values: dict[str, float | None], unit: str) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items()) + f" {unit}"


def number(value: float | None) -> str:
    """Three or four significant digits, or a dash."""
    return "-" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A fraction as a percentage with one decimal, or a dash."""
    return "-" if share is None else f"{100 * share:.1f}%"
