"""Runs on a GPU beside their simulations, as tables: what is off, and which terms of the price."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.compare.finished_run import FinishedRun
from experiments.compare.terms import SOFTWARE, Term

Summary = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """A simulation: its summary, and its price of the real iterations by term."""

    summary: Summary
    terms: Sequence[Term]


@dataclass(frozen=True)
class Pair:
    """One run on a GPU, simulated with the profiles measured on the engine, and with those that ship."""

    name: str
    about: str
    real: FinishedRun
    ours: Side
    shipped: Side


RATIOS: dict[str, Callable[[Summary], float | None]] = {
    "tokens/s": lambda s: s["throughput"]["output_tokens_per_s"],
    "TPOT": lambda s: s["tpot_s"]["mean"],
    "s/token": lambda s: s["normalized_latency_s_per_token"]["mean"],
    "TTFT p50": lambda s: s["ttft_s"]["p50"],
}
KINDS = ("token_states", "reserved", "internal", "external")
TERMS: dict[str, Callable[[str], bool]] = {
    "decodes": lambda term: term.endswith(": decodes"),
    "with prompts": lambda term: "prompts" in term and "swaps" not in term,
    "with swaps": lambda term: "swaps" in term,
    SOFTWARE: lambda term: term == SOFTWARE,
}


def section(pairs: list[Pair]) -> str:
    """The whole section in Markdown."""
    said = pairs[0].real.summary["engine"]["fingerprint"] or {}
    where = ", ".join(said[key] for key in ("device", "date") if key in said) or "a CPU: a rehearsal, no measurement"
    return "\n".join(
        [
            f"`python -m kernels.engine.pairs` ({where}; rows in `engine/pairs`) and",
            "`python -m experiments.validation.pairs`, which made this section. Arrivals in a fixed window without",
            "drain. Errors are simulated / measured - 1; preemptions are counts, simulated / measured; mean batch and",
            "shares of memory are differences. Prices: the profiles measured on the engine (`engine/profiles`,",
            "`python -m kernels.engine.calibrate`), and the software time measured before the pairs.",
            "",
            *errors(pairs, lambda pair: pair.ours),
            "",
            "The same with the profiles that ship, whose layers were timed as torch runs them, kind of work by kind.",
            "",
            *errors(pairs, lambda pair: pair.shipped),
            "",
            "Cost terms, as `testbed compare` finds them: every real iteration, priced. Measured / priced s, and the",
            "error in points of the time that the engine was at work (below 0: priced too low); in brackets with the",
            "profiles that ship.",
            "",
            *blame(pairs),
            "",
            "As measured, and as simulated: the batch, latency and the pool by kind over time (Figures 2, 12, 13;",
            "`engine/figure.png` by `--figure`).",
            "",
            *levels(pairs),
            "",
        ]
    )


def errors(pairs: list[Pair], side: Callable[[Pair], Side]) -> list[str]:
    """One line a pair."""
    names = [*RATIOS, "preemptions", "batch", *(kind.replace("_", " ") for kind in KINDS)]
    rows = []
    for pair in pairs:
        ours, real = side(pair).summary, pair.real.summary
        ratios = [_percent(_ratio(of(ours), of(real))) for of in RATIOS.values()]
        counts = f"{sum(ours['preemptions'].values())} / {sum(real['preemptions'].values())}"
        batch = _difference(ours["batch"]["mean_over_time"], real["batch"]["mean_over_time"], 1)
        shares = [_difference(share(ours, kind), share(real, kind), 100) for kind in KINDS]
        rows.append([pair.about, *ratios, counts, batch, *shares])
    return markdown(["pair", *names], rows)


def blame(pairs: list[Pair]) -> list[str]:
    """Which terms are off, and by how much of the whole."""
    rows = []
    for pair in pairs:
        cells = []
        for kind in TERMS.values():
            measured_s, priced_s, points = _together(pair.ours.terms, kind)
            shipped = _together(pair.shipped.terms, kind)[2]
            cells.append(f"{measured_s:.2f} / {priced_s:.2f}, {points:+.1f} ({shipped:+.1f})" if measured_s else "-")
        rows.append([pair.about, *cells])
    return markdown(["pair", *TERMS], rows)


def levels(pairs: list[Pair]) -> list[str]:
    """Figures' quantities of both sides."""
    rows = []
    for pair in pairs:
        both = pair.real.summary, pair.ours.summary
        batch = _beside(*(one["batch"]["mean_over_time"] for one in both), digits=2)
        latency = _beside(*(RATIOS["s/token"](one) for one in both), digits=5)
        shares = [_beside(*(_times(share(one, kind), 100) for one in both), digits=1) for kind in KINDS]
        rows.append([pair.about, batch, latency, *shares])
    kinds = [f"{kind.replace('_', ' ')}, %" for kind in KINDS]
    return markdown(["pair", "batch", "s/token", *kinds], rows)


def share(summary: Summary, kind: str) -> float | None:
    """The share of the pool that a kind of memory had over time."""
    value: float | None = summary["memory"][kind]["over_time"]
    return value


def markdown(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table."""
    lines = [names, ["---"] * len(names), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def _together(terms: Sequence[Term], kind: Callable[[str], bool]) -> tuple[float, float, float]:
    """Seconds measured, seconds priced, and points of the busy time of all terms of a kind."""
    found = [term for term in terms if kind(term.term)]
    return tuple(sum(getattr(term, name) for term in found) for name in ("measured_s", "priced_s", "share_points"))


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
