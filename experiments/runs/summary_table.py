"""Tables for the terminal."""

from typing import Any

from rich.table import Table


def summary_table(summary: dict[str, Any]) -> Table:
    """A run's summary for people."""
    table = Table(title="Summary", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value")
    for what, value in _summary_rows(summary):
        table.add_row(what, value)
    return table


def _summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    requests, rates, batch = summary["requests"], summary["throughput"], summary["batch"]
    memory, preemptions, counters = summary["memory"], summary["preemptions"], summary["counters"]
    return [
        ("requests", ", ".join(f"{value:,} {name}" for name, value in requests.items())),
        ("simulated time", f"{summary['simulated_s']:,.1f} s, {summary['iterations']:,} iterations"),
        ("throughput", f"{number(rates['requests_per_s'])} req/s, {number(rates['output_tokens_per_s'])} tokens/s"),
        ("normalized latency", _spread(summary["normalized_latency_s_per_token"], "s/token")),
        ("time to first token", _spread(summary["ttft_s"], "s")),
        ("time per output token", _spread(summary["tpot_s"], "s")),
        (
            "batched requests",
            f"{number(batch['mean_per_iteration'])} per iteration, {number(batch['mean_over_time'])} over time",
        ),
        (
            "memory per iteration",
            ", ".join(f"{name} {percent(part['per_iteration'])}" for name, part in memory.items()),
        ),
        ("preemptions", ", ".join(f"{value:,} {name}" for name, value in preemptions.items())),
        *([("counted by the policy", _counted(counters))] if counters else []),
    ]


def _counted(counters: dict[str, float]) -> str:
    """A policy's own counts; where it looks for blocks, the share that it found comes first."""
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
