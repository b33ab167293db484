"""The numbers of a run, where its summary stores each, and the tables that the terminal shows."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from testbed.experiments.runs.part_words import part_words
from testbed.metrics import in_words
from testbed.run import OVERLOAD, PROFILE, STOPPED
from testbed.summaries import CONTENTS, ENGINES, RUN, costs_of, source_of_costs, was_served
from testbed.vllm_pages import logged_lines


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
        """Whether it is shown in percent, and its differences in percentage points."""
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


LIMITS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "end to end"}
ABOVE = "costs", "reads the future"  # which stand above the table of the terminal
STOPPED_TEXT = (
    "the mean latency of all is at least {} s/token; what follows is of those that ended before"
)


@cache
def quantities() -> list[Quantity]:
    """All numbers in the order in which they are shown."""
    with Path(__file__).with_name("quantities.csv").open(encoding="utf-8") as file:
        return [Quantity(**row) for row in csv.DictReader(file)]


def main(all_quantities: Iterable[Quantity]) -> list[Quantity]:
    """The numbers that decide between servers, the most important first."""
    ranked = [quantity for quantity in all_quantities if quantity.place]
    return sorted(ranked, key=lambda quantity: int(quantity.place))


def main_numbers(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The main numbers of each summary as text, by title, without those that no summary has."""
    texts = {}
    for quantity in main(quantities()):
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


def summary_table(summary: dict[str, Any]) -> Group:
    """A run's summary for the terminal.

    Before the table stand what an oracle reads, the source and the tested error of the costs, and
    the scheduler's note.
    """
    table = Table("what", "value", title="Summary", title_justify="left", show_header=False)
    parts = run_words(summary.get(RUN, {}))
    for name, value in (
        *[(name, value) for name, value in parts.items() if name not in ABOVE],
        *_served_rows(summary),
        *_latency_rows(summary),
        *_memory_rows(summary),
    ):
        table.add_row(name, value)
    lines = []
    if future := future_read_by(summary):
        lines.append(Text(f"reads the future, as no real server can: {future}"))
    if costs := costs_of(summary):
        lines.append(Text(f"costs: {costs}"))
    if note := summary.get(RUN, {}).get("scheduler_note"):
        lines.append(Text(f"scheduler: {note}"))
    if note := summary.get(RUN, {}).get(CONTENTS):
        lines.append(Text(f"prefix cache: {note}"))
    return Group(*lines, table, *_engines_table(summary))


def _served_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The requests, whether the run was stopped or overloaded, its length and its throughput."""
    yield "requests", _counts(summary["requests"])
    if (latency := summary.get(STOPPED)) is not None:
        yield "stopped early", STOPPED_TEXT.format(number(latency))
    if summary.get(OVERLOAD):
        yield "overloaded", in_words(summary[OVERLOAD])
    seconds, iterations = summary["simulated_s"], summary["iterations"]
    time = "time" if was_served(summary) else "simulated time"
    yield time, f"{seconds:,.1f} s, {iterations:,} iterations"
    rates = summary["throughput"]
    requests, tokens = number(rates["requests_per_s"]), number(rates["output_tokens_per_s"])
    yield "throughput", f"{requests} req/s, {tokens} tokens/s"


def _latency_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The latencies, and the share of requests inside the objectives if there are any; a folder of
    an older version has no gaps.
    """
    yield "time to first token", _spread(summary["ttft_s"], "s")
    yield "time per output token", _spread(summary["tpot_s"], "s")
    if gaps := summary.get("itl_s"):
        yield "between two tokens (ITL)", _spread(gaps, "s")
    if speeds := summary.get("tokens_per_s_per_user"):
        yield "speed for a user", _spread(speeds, "tokens/s")
    yield "end to end", _spread(summary["e2e_s"], "s")
    yield "normalized latency", _spread(summary["normalized_latency_s_per_token"], "s/token")
    if _limits(summary["slo"]):
        yield "inside the objectives", _goodput(summary["slo"])


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
        note = summary.get(RUN, {}).get(CONTENTS)
        unknown = "contents unknown, so nothing can be found; " if note else ""
        yield "counted by the policy", unknown + _counted(summary["counters"])
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
    return [table]


def future_read_by(summary: Mapping[str, Any]) -> str:
    """What a run reads of the future, in words; empty where it reads nothing."""
    return summary.get(RUN, {}).get("future_read") or ""


def remark_on_ways(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A remark where the costs of some runs were measured and those of others derived or computed;
    runs: simulated summaries by name.
    """
    ways = {name: way_of(summary) for name, summary in runs.items()}
    if len(set(ways.values())) > 1:
        names = "; ".join(
            f"{way}: {', '.join(name for name, other in ways.items() if other == way)}"
            for way in dict.fromkeys(ways.values())
        )
        yield (
            f"the costs come in different ways ({names}), so that their errors are part of the "
            "differences"
        )


def way_of(summary: Mapping[str, Any]) -> str:
    """How the costs of a run were made from measurements."""
    profile = summary.get(PROFILE)
    if not profile:
        return "without a profile"
    return "derived" if "from" in profile else "measured"


def run_words(run: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a run in a few words, by name; empty if the summary has none."""
    if not run:
        return {}
    is_layered = run.get("slot_layers") == 1
    size = f"{run['pool_slots']:,} {'slots of one layer' if is_layered else 'tokens'}"
    if run["pool_blocks"]:
        size += f", {run['pool_blocks']:,} blocks of {run['block_size']} tokens"
    return {
        "model, server": f"{run['model']} on {run['num_gpus']} x {run['gpu']} ({run['server']})",
        "KV pool": f"{size}, {number(run['pool_gib'])} GiB",
        **_vllms_lines(run),
        **_fleet(run),
        "policy": part_words(run["policy"]),
        "scheduler": part_words(f"{run['scheduler']}, {run['preemption']}"),
        **_speculation(run),
        **({"reads the future": run["future_read"]} if run.get("future_read") else {}),
        "costs": source_of_costs(run["cost"]),
        "workload": part_words(f"{run['trace']}, {run['arrivals']}, seed {run['seed']}"),
    }


def _vllms_lines(run: Mapping[str, Any]) -> dict[str, str]:
    if "kv_cache_tokens" not in run:
        return {}
    numbers = run["kv_cache_tokens"], run["max_model_len"], run["max_concurrency"]
    return {"vLLM's log": "; ".join(logged_lines(*numbers))}


def _speculation(run: Mapping[str, Any]) -> dict[str, str]:
    if "speculation" not in run:
        return {}
    return {"speculation": f"{part_words(run['speculation'])}; {run['draft_cost']}"}


def _fleet(run: Mapping[str, Any]) -> dict[str, str]:
    """The engines, router, faults, shared tiers and other servers of a fleet; empty for one."""
    if "replicas" not in run:
        return {}
    faults = f"; {run['faults']}" if "faults" in run else ""
    split = ""
    if "prefill_replicas" in run:
        split = f"; {run['prefill_replicas']} prefill for the others, {part_words(run['handover'])}"
    tiers = f"; all share {run['shared_tiers']}" if "shared_tiers" in run else ""
    others = {"other servers": run["servers"]} if "servers" in run else {}
    return {
        "engines": f"{run['replicas']} behind {part_words(run['router'])}{split}{tiers}{faults}",
        **others,
    }


def _memory(summary: Mapping[str, Any]) -> str:
    """The pool by kind.

    Slots that are not held are called free instead of external if any of them can be used, as in a
    paged pool.
    """
    shares = {name: part["per_iteration"] for name, part in summary["memory"].items()}
    free, cached = (summary["memory_free"][name]["per_iteration"] for name in ("free", "cached"))
    largest = summary["memory_free"]["largest_free"]["per_iteration"]
    if free is not None and free == shares["external"] == largest:
        del shares["external"]
        shares |= {"cached": cached, "free": free - cached} if cached else {"free": free}
    return ", ".join(f"{name.replace('_', ' ')} {percent(share)}" for name, share in shares.items())


def _limits(slo: Mapping[str, float | None]) -> dict[str, float]:
    """The limits that are set, by their short names."""
    limits = {name: slo.get(key) for key, name in LIMITS.items()}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _goodput(slo: Mapping[str, float | None]) -> str:
    """The share and the rate of the requests that meet the objectives."""
    limits = [f"{name} {number(limit)} s" for name, limit in _limits(slo).items()]
    inside, rate = percent(slo["share_inside"]), number(slo["goodput_requests_per_s"])
    return f"{inside} of the requests, {rate} req/s ({', '.join(limits)})"


def _counted(counters: Mapping[str, float]) -> str:
    """The counters of a policy, after the hit rate of its prefix cache if it has one."""
    counts = _counts({name.replace("_", " "): count for name, count in counters.items()})
    if not counters.get("blocks") or "hit_blocks" not in counters:
        return counts
    hit_rate = percent(counters["hit_blocks"] / counters["blocks"])
    return f"{hit_rate} of all prompt blocks found; {counts}"


def _spread(values: dict[str, float | None], unit: str) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items()) + f" {unit}"


def number(value: float | None) -> str:
    """Three or four significant digits, or a dash."""
    if value is None:
        return "-"
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A fraction as a percentage with one decimal, or a dash."""
    return "-" if share is None else f"{100 * share:.1f}%"
