"""The simulated side of the runs that `testbed pairs` made on a GPU, and tables of both sides.

It needs no GPU: a simulated run has the config of the real one, so the same requests, policy and scheduler. Costs are
those of measured profiles, the engine's and those that ship, and the software time that was measured before the pairs
began; nothing is fitted to a pair.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.experiments.compare.finished_run import FinishedRun, read_run
from testbed.experiments.compare.terms import SOFTWARE, Term, terms
from testbed.experiments.runs.run_folder import write_everything
from testbed.experiments.runs.whole_files import SUMMARY, write_json, write_text
from testbed.kernels.engine.pairs.plan import PAIRS
from testbed.kernels.engine.pairs.software import read_software
from testbed.run import run

Summary = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """A simulation: its summary, and its cost of the real iterations by term."""

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
NAMES = [kind.replace("_", " ") for kind in KINDS]
TERMS: dict[str, Callable[[str], bool]] = {
    "decodes": lambda term: term.endswith(": decodes"),
    "with prompts": lambda term: "prompts" in term and "swaps" not in term,
    "with swaps": lambda term: "swaps" in term,
    SOFTWARE: lambda term: term == SOFTWARE,
}
SECTION = """`testbed pairs` ({where}; rows in `engine/pairs`) and
`testbed validate-pairs`, which made this section. Arrivals in a fixed window without
drain. Errors are simulated / measured - 1; preemptions are counts, simulated / measured; mean batch and
shares of memory are differences. Costs: the profiles measured on the engine (`engine/profiles`), and the
software time measured before the pairs.

{ours}

The same with the profiles that ship, whose layers were timed as torch runs them, kind of work by kind.

{shipped}

Cost terms, as `testbed compare` finds them: every real iteration by the model. Measured / modelled s, and the
error in points of the time that the engine was at work (below 0: modelled too low); in brackets with the
profiles that ship.

{blame}

As measured, and as simulated: the batch, latency and the pool by kind over time (Figures 2, 12, 13).

{levels}
"""


def section(pairs: Sequence[Pair]) -> str:
    """The whole section in Markdown."""
    fingerprint = pairs[0].real.summary["engine"]["fingerprint"] or {}
    where = (
        ", ".join(fingerprint[key] for key in ("device", "date") if key in fingerprint)
        or "a CPU: a rehearsal, no measurement"
    )
    head = ["pair", *RATIOS, "preemptions", "batch", *NAMES]
    tables = {
        "ours": markdown(head, [_errors(pair, pair.ours) for pair in pairs]),
        "shipped": markdown(head, [_errors(pair, pair.shipped) for pair in pairs]),
        "blame": markdown(["pair", *TERMS], [_blame(pair) for pair in pairs]),
        "levels": markdown(["pair", "batch", "s/token", *(f"{name}, %" for name in NAMES)], map(_levels, pairs)),
    }
    return SECTION.format(where=where, **{name: "\n".join(lines) for name, lines in tables.items()})


def _errors(pair: Pair, side: Side) -> list[str]:
    """How far a simulation is off."""
    ours, real = side.summary, pair.real.summary
    ratios = [_ratio(of(ours), of(real)) for of in RATIOS.values()]
    counts = f"{sum(ours['preemptions'].values())} / {sum(real['preemptions'].values())}"
    batch = f"{ours['batch']['mean_over_time'] - real['batch']['mean_over_time']:+.2f}"
    shares = [_difference(share(ours, kind), share(real, kind)) for kind in KINDS]
    return [pair.about, *ratios, counts, batch, *shares]


def _blame(pair: Pair) -> list[str]:
    """Which terms are off, and by how much of the whole."""
    cells = []
    for kind in TERMS.values():
        measured_s, predicted_s, points = _in_parallel(pair.ours.terms, kind)
        shipped = _in_parallel(pair.shipped.terms, kind)[2]
        cells.append(f"{measured_s:.2f} / {predicted_s:.2f}, {points:+.1f} ({shipped:+.1f})" if measured_s else "-")
    return [pair.about, *cells]


def _levels(pair: Pair) -> list[str]:
    """Figures' quantities of both sides."""
    both = pair.real.summary, pair.ours.summary
    batch = _both([one["batch"]["mean_over_time"] for one in both], "{:.2f}")
    latency = _both([RATIOS["s/token"](one) for one in both], "{:.5f}")
    percent = [[None if (part := share(one, kind)) is None else 100 * part for one in both] for kind in KINDS]
    return [pair.about, batch, latency, *(_both(values, "{:.1f}") for values in percent)]


def share(summary: Summary, kind: str) -> float | None:
    """The share of the pool that a kind of memory had over time."""
    value: float | None = summary["memory"][kind]["over_time"]
    return value


def _in_parallel(terms: Sequence[Term], kind: Callable[[str], bool]) -> tuple[float, float, float]:
    """Seconds measured, seconds predicted, and points of the busy time of all terms of a kind."""
    found = [term for term in terms if kind(term.term)]
    return tuple(sum(getattr(term, name) for term in found) for name in ("measured_s", "predicted_s", "share_points"))


def _ratio(ours: float | None, real: float | None) -> str:
    return "-" if not real or ours is None else f"{100 * (ours / real - 1):+.1f}%"


def _difference(ours: float | None, real: float | None) -> str:
    return "-" if ours is None or real is None else f"{100 * (ours - real):+.2f}"


def _both(values: Sequence[float | None], form: str) -> str:
    return " / ".join("-" if value is None else form.format(value) for value in values)


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; [] without rows."""
    lines = ["| " + " | ".join(line) + " |" for line in rows]
    return ["| " + " | ".join(names) + " |", "| " + " | ".join(["---"] * len(names)) + " |", *lines] if lines else []


def simulated(runs: Path, profiles: Path, out: Path | None) -> list[Pair]:
    """Every run of the engine below `runs` with its simulations, by the engine's profiles and by those that ship."""
    found = []
    for pair in PAIRS:
        folder = runs / pair.name
        if (folder / SUMMARY).exists():
            measured = read_run(pair.name, folder)  # of any version: rows are kept longer than code
            ours = side(measured, with_profiles(folder, profiles), out)
            shipped = side(measured, with_profiles(folder, None), None)
            found.append(Pair(pair.name, pair.about, measured, ours, shipped))
    if not found:
        raise InputError(f"{runs} has no run of a pair (run testbed pairs on a GPU first)")
    return found


def side(measured: FinishedRun, config: dict[str, Any], out: Path | None) -> Side:
    """Simulate a config; the run is written below `out`."""
    setup = build(RunConfig.from_values(config))
    result = run(setup)
    folder = (out or Path()) / measured.name
    if out is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        write_everything(folder, setup, result)
        write_json(folder / "timing.json", {"wall_s": result.wall_s})
        write_json(folder / SUMMARY, result.summary)
    simulation = FinishedRun(measured.name, folder, config, result.summary, None, None)
    return Side(result.summary, terms(simulation, measured))


def with_profiles(real: Path, profiles: Path | None) -> dict[str, Any]:
    """The config of a real run, with the costs that were measured with it; None: profiles that ship."""
    values: dict[str, Any] = yaml.safe_load((real / "config.yaml").read_text(encoding="utf-8"))
    values.pop("engine")
    settings = values["cost"].get("choices") or values["cost"]["efficiencies"]
    software = real.parent / f"software-{values['model']['name']}.csv"
    settings["overhead_s"], settings["overhead_per_request_s"] = read_software(software)
    if "choices" in values["cost"]:
        settings["swap_waits"] = "all in"  # what the engine does: see CudaMoves
    if profiles is not None and "path" in values["cost"]:
        values["cost"]["path"] = str(profiles / f"{values['cost']['path']}.json")
    return values
