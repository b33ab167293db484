"""The tables of a run that the terminal shows: its summary, and the engines of a fleet."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from testbed.experiments.runs.quantities import few_requests, number, percent, still_filling
from testbed.experiments.runs.run_words import future_read_by, handover_times, run_words
from testbed.experiments.runs.unbroken import unbroken
from testbed.run.metrics import WHILE_ARRIVING, in_words
from testbed.run.simulate import OVERLOAD, STOPPED
from testbed.run.summaries import (
    CONTENTS,
    ENGINES,
    HANDOVERS,
    PROFILE,
    RUN,
    SAMPLES,
    UNREAD,
    costs_of,
    remedy_for_rejections,
    was_served,
)
from testbed.run.while_arriving import ARRIVED, COMPLETED, LAST_ARRIVAL, is_filling

LIMITS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "end to end"}
ABOVE = "costs", "reads the future"  # which stand above the table of the terminal
NOTES = {  # above it too: what each is about
    "scheduler_note": "scheduler",
    "policy_note": "policy",
    CONTENTS: "prefix cache",
    UNREAD: "trace",
    SAMPLES: "samples",
}
STOPPED_TEXT = (
    "the mean latency of all is at least {} s/token; what follows is of those that ended before"
)
ENGINE_COLUMNS = (
    "engine",
    "requests",
    "moved away",
    "mean TTFT (s)",
    "p99 TTFT (s)",
    "busy (s)",
    "prompt tokens found",
)


def summary_table(summary: dict[str, Any]) -> Group:
    """A run's summary for the terminal.

    Before the table stand what an oracle reads, the source and the tested error of the costs, and
    the notes.
    """
    table = Table("what", "value", title="Summary", title_justify="left", show_header=False)
    parts = run_words(summary[RUN])
    for name, value in (
        *[(name, value) for name, value in parts.items() if name not in ABOVE],
        *_served_rows(summary),
        *_latency_rows(summary),
        *_memory_rows(summary),
    ):
        table.add_row(name, value)
    unbroken(table)
    lines = []
    if future := future_read_by(summary):
        lines.append(Text(f"reads the future, as no real server can: {future}"))
    if costs := costs_of(summary):
        lines.append(Text(f"costs: {costs}"))
    run = summary[RUN]
    lines += map(Text, [*few_requests([summary]), *handover_times([summary])])
    lines += [Text(f"{about}: {run[key]}") for key, about in NOTES.items() if run.get(key)]
    return Group(*lines, table, *_engines_table(summary))


def _served_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The requests, whether the run was stopped or overloaded, its length and its throughput."""
    requests = summary["requests"]
    why = " (longer than the server takes, which latencies leave out)"
    yield "requests", f"{_counts(requests)}{why if requests.get('rejected') else ''}"
    if (latency := summary.get(STOPPED)) is not None:
        yield "stopped early", STOPPED_TEXT.format(number(latency))
    if summary.get(OVERLOAD):
        yield "overloaded", in_words(summary[OVERLOAD])
    seconds, iterations = summary["simulated_s"], summary["iterations"]
    time = "time" if was_served(summary) else "simulated time"
    yield time, f"{seconds:,.1f} s, {iterations:,} iterations"
    yield from _throughput_rows(summary)


def _throughput_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The rates in the second half of the arrivals, unless all arrive at once, and those of the
    whole run, whose drain lowers them.
    """
    if part := summary[WHILE_ARRIVING]:
        came = number(part[ARRIVED])
        done, tokens = number(part[COMPLETED]), number(part["completed_output_tokens_per_s"])
        window = f"{number(part['from_s'])} to {number(part['to_s'])} s"
        text = f"{came} req/s arrive and {done} complete, {tokens} tokens/s ({window})"
        if is_filling(part):
            text += f"; {still_filling(part)}"
        yield f"throughput, 2nd half of {_half_of(part)}", text
    rates = summary["throughput"]
    requests, tokens = number(rates["requests_per_s"]), number(rates["output_tokens_per_s"])
    yield "throughput, with the drain", f"{requests} req/s, {tokens} tokens/s"


def _half_of(part: Mapping[str, Any]) -> str:
    """The events whose time is halved: later turns of sessions arrive behind its end."""
    of_sessions = part["to_s"] < part[LAST_ARRIVAL]
    return "session starts" if of_sessions else "arrivals"


def _latency_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The latencies, and the share of requests inside the objectives if there are any; the reason
    why there are none.
    """
    requests = summary["requests"]
    if requests["arrived"] and requests.get("rejected") == requests["arrived"]:
        remedy = remedy_for_rejections(summary)
        yield "latencies", f"none: every request is longer than the server takes ({remedy})"
        return
    yield "time to first token", _spread(summary["ttft_s"], "s")
    yield "time per output token", _spread(summary["tpot_s"], "s")
    yield "between two tokens (ITL)", _spread(summary["itl_s"], "s")
    yield "speed for a user", _spread(summary["tokens_per_s_per_user"], "tokens/s")
    yield "end to end", _spread(summary["e2e_s"], "s")
    yield "normalized latency", _spread(summary["normalized_latency_s_per_token"], "s/token")
    if _limits(summary["slo"]):
        yield "inside the objectives", _goodput(summary["slo"], summary["simulated_s"])


def _memory_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Batch, memory, preemptions, the policy's counters, and all-reduces that are a stand-in."""
    means = summary["batch"]
    per_iteration, over_time = number(means["mean_per_iteration"]), number(means["mean_over_time"])
    yield "batched requests", f"{per_iteration} per iteration, {over_time} over time"
    yield "memory per iteration", _memory(summary)
    yield "preemptions", _counts(summary["preemptions"])
    if "speculation" in summary:
        yield "drafts", _drafts(summary["speculation"])
    if summary["counters"]:
        note = summary[RUN].get(CONTENTS)
        unknown = "contents unknown, so nothing can be found; " if note else ""
        twice = "each prompt counts at two engines; " if HANDOVERS in summary else ""
        yield "counted by the policy", unknown + twice + _counted(summary["counters"])
    if stand_in := (summary.get(PROFILE) or {}).get("all_reduce"):
        yield "all-reduces", stand_in


def _drafts(counts: Mapping[str, float | None]) -> str:
    """The accepted share of draft tokens, and what a step brings."""
    tokens, share = counts["tokens_per_step"], counts["accepted_share"]
    if tokens is None:
        return "no step was taken"
    accepted = "none drafted" if share is None else f"{percent(share)} accepted"
    return f"{counts['drafted']:,} tokens, {accepted}; {number(tokens)} tokens a step of a sequence"


def _counts(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def engine_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """A row of text for each engine of a fleet, by ENGINE_COLUMNS; none for one engine."""
    return [_engine_row(name, engine) for name, engine in summary.get(ENGINES, {}).items()]


def _engine_row(name: str, engine: Mapping[str, Any]) -> list[str]:
    requests, ttft, counters = engine["requests"], engine["ttft_s"], engine["counters"]
    num_tokens = counters.get("tokens")
    hit_rate = counters["hit_tokens"] / num_tokens if num_tokens else None
    return [
        name,
        f"{requests['arrived']:,}",
        f"{requests['moved']:,}",
        number(ttft["mean"]),
        number(ttft["p99"]),
        number(engine["busy_s"]),
        percent(hit_rate),
    ]


def _engines_table(summary: Mapping[str, Any]) -> list[Table]:
    """The table of a fleet's engines; nothing for one engine."""
    rows = engine_rows(summary)
    if not rows:
        return []
    table = Table(*ENGINE_COLUMNS, title="Engines", title_justify="left")
    for row in rows:
        table.add_row(*row)
    return [unbroken(table)]


def _memory(summary: Mapping[str, Any]) -> str:
    """The pool by kind.

    Slots that are not held are called free instead of external if any of them can be used, as in a
    paged pool, and cached or empty if some hold what a later prompt may find.
    """
    shares = {name: part["per_iteration"] for name, part in summary["memory"].items()}
    free, cached = (summary["memory_free"][name]["per_iteration"] for name in ("free", "cached"))
    largest = summary["memory_free"]["largest_free"]["per_iteration"]
    if free is not None and free == shares["external"] == largest:
        del shares["external"]
        shares |= {"cached": cached, "empty": free - cached} if cached else {"free": free}
    return ", ".join(f"{name.replace('_', ' ')} {percent(share)}" for name, share in shares.items())


def _limits(slo: Mapping[str, float | None]) -> dict[str, float]:
    """The limits that are set, by their short names."""
    limits = {name: slo.get(key) for key, name in LIMITS.items()}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _goodput(slo: Mapping[str, float | None], seconds: float) -> str:
    """The share and the rate of the requests that meet the objectives."""
    limits = [f"{name} {number(limit)} s" for name, limit in _limits(slo).items()]
    inside, rate = percent(slo["share_inside"]), number(slo["goodput_requests_per_s"])
    return f"{inside} of the requests, {rate} req/s ({', '.join(limits)}){_beyond(slo, seconds)}"


def _beyond(slo: Mapping[str, float | None], seconds: float) -> str:
    """The remark on objectives that no request of a run of so many seconds can miss."""
    longer = [limit for limit in _limits(slo).values() if limit > seconds]
    if not longer:
        return ""
    limit = max(longer)
    return (
        f"; no latency in {number(seconds)} s is longer than {number(limit)} s: did you mean "
        f"{limit / 1000:g}?"
    )


def _counted(counters: Mapping[str, float]) -> str:
    """The counters of a policy, after the hit rate of its prefix cache if it has one."""
    counts = _counts({name.replace("_", " "): count for name, count in counters.items()})
    if not counters.get("blocks") or "hit_blocks" not in counters:
        return counts
    hit_rate = percent(counters["hit_blocks"] / counters["blocks"])
    return f"{hit_rate} of all prompt blocks found; {counts}"


def _spread(values: dict[str, float | None], unit: str) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items()) + f" {unit}"
