"""Runs on a GPU beside their simulations, as tables: what is off, and in which iterations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

Summary = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """One run: both summaries, and its real iterations with their prices."""

    name: str
    about: str
    real: Summary
    simulated: Summary
    iterations: pd.DataFrame


RATIOS: dict[str, Callable[[Summary], float | None]] = {
    "tokens/s": lambda s: s["throughput"]["output_tokens_per_s"],
    "TPOT": lambda s: s["tpot_s"]["mean"],
    "s/token": lambda s: s["normalized_latency_s_per_token"]["mean"],
    "TTFT p50": lambda s: s["ttft_s"]["p50"],
}
KINDS = ("token_states", "reserved", "internal", "external")


def section(pairs: list[Pair], prices: str) -> str:
    """The whole section in Markdown; `prices` says which profiles were used."""
    device = (pairs[0].real["engine"]["fingerprint"] or {}).get("device", "a CPU: a rehearsal, no measurement")
    date = (pairs[0].real["engine"]["fingerprint"] or {}).get("date", "")
    return "\n".join(
        [
            f"`python -m kernels.engine.pairs` ({device}{', ' + date if date else ''}; rows in `engine/pairs`) and "
            "`python -m experiments.validation.pairs`,",
            "which made this section. Arrivals in a fixed window without drain. Errors are simulated / measured - 1;",
            "preemptions are counts, simulated / measured; mean batch and shares of memory are differences.",
            f"Prices: {prices}, and the software time measured before the pairs.",
            "",
            *errors(pairs),
            "",
            "Where time goes: measured / priced duration of decodes alone and of iterations with prompts; and",
            "which share of the time the GPU works, and the host. Medians of the host's work in iterations with",
            "prompts, and of the whole iteration, say whether launching them holds the GPU up.",
            "",
            *blame(pairs),
            "",
            "As measured, and as simulated: the batch, latency and the pool by kind over time (Figures 2, 12, 13).",
            "",
            *levels(pairs),
            "",
        ]
    )


def errors(pairs: list[Pair]) -> list[str]:
    """One line a pair."""
    names = [*RATIOS, "preemptions", "batch", *(kind.replace("_", " ") for kind in KINDS)]
    rows = []
    for pair in pairs:
        ours, real = pair.simulated, pair.real
        ratios = [_percent(_ratio(of(ours), of(real))) for of in RATIOS.values()]
        counts = f"{sum(ours['preemptions'].values())} / {sum(real['preemptions'].values())}"
        batch = _difference(ours["batch"]["mean_over_time"], real["batch"]["mean_over_time"], 1)
        shares = [_difference(_share(ours, kind), _share(real, kind), 100) for kind in KINDS]
        rows.append([pair.about, *ratios, counts, batch, *shares])
    return _table(["pair", *names], rows)


def blame(pairs: list[Pair]) -> list[str]:
    """Which iterations take longer than their price."""
    rows = []
    for pair in pairs:
        table = pair.iterations
        both = [table[table["prompts"] == prompts] for prompts in (False, True)]
        ratios = [f"{_over(part):.3f}" if len(part) else "-" for part in both]
        total = table["duration_s"].sum() or 1.0
        busy, host = (f"{100 * table[name].sum() / total:.1f}%" for name in ("gpu_s", "host_s"))
        medians = " / ".join(f"{1e3 * both[1][name].median():.1f}" for name in ("host_s", "duration_s"))
        rows.append([pair.about, len(both[0]), ratios[0], len(both[1]), ratios[1], medians, busy, host])
    names = [
        "decodes", "measured / priced", "with prompts", "measured / priced", "their host / whole, ms", "GPU works",
        "host works",
    ]  # fmt: skip
    return _table(["pair", *names], rows)


def levels(pairs: list[Pair]) -> list[str]:
    """Figures' quantities of both sides."""
    rows = []
    for pair in pairs:
        both = pair.real, pair.simulated
        batch = _beside(*(one["batch"]["mean_over_time"] for one in both), digits=2)
        latency = _beside(*(RATIOS["s/token"](one) for one in both), digits=5)
        shares = [_beside(*(_times(_share(one, kind), 100) for one in both), digits=1) for kind in KINDS]
        rows.append([pair.about, batch, latency, *shares])
    kinds = [f"{kind.replace('_', ' ')}, %" for kind in KINDS]
    return _table(["pair", "batch", "s/token", *kinds], rows)


def _over(part: pd.DataFrame) -> float:
    return float(part["duration_s"].sum() / part["priced_s"].sum())


def _share(summary: Summary, kind: str) -> float | None:
    value: float | None = summary["memory"][kind]["over_time"]
    return value


def _ratio(ours: float | None, real: float | None) -> float | None:
    return None if not real or ours is None else ours / real - 1


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}%"


def _difference(ours: float | None, real: float | None, times: float) -> str:
    return "-" if ours is None or real is None else f"{times * (ours - real):+.2f}"


def _beside(real: float | None, ours: float | None, digits: int) -> str:
    return " / ".join("-" if value is None else f"{value:.{digits}f}" for value in (real, ours))


def _table(names: list[str], rows: list[list[Any]]) -> list[str]:
    lines = [names, ["---"] * len(names), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]
