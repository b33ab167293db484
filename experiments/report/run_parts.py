"""One run, and a folder of runs, as parts of a page: figures first, tables after."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from experiments.compare import curves
from experiments.compare.comparison import differences
from experiments.compare.finished_run import FinishedRun
from experiments.compare.quantities import Quantity, quantities
from experiments.compare.texts import readable
from experiments.compare.what_it_was import what_it_was
from experiments.pages.html import NUMBER, SMALL, details, gallery, heading, paragraph, picture, table
from experiments.report import sweep_figure
from experiments.runs.summary_table import number

PLOTS = {
    "memory": "The KV cache by kind over time",
    "batch": "Requests in the batch, waiting and swapped, over time",
    "latency_cdf": "Share of requests answered within a normalized latency",
    "memory_map": "Who held which physical block, over time",
}
SHOWN = {
    "requests/s": ("throughput", "requests"),
    "norm. latency, s/token": ("normalized latency", "mean"),
    "p95": ("normalized latency", "p95"),
    "TTFT p50, s": ("TTFT", "p50"),
    "TPOT mean, s": ("TPOT", "mean"),
    "batch": ("batched requests", "mean per iteration"),
    "token states, %": ("memory per iteration", "token states"),
    "finished": ("requests", "finished"),
    "preempted: swap": ("preemptions", "swap"),
    "recompute": ("preemptions", "recompute"),
}
MOST_CURVES = 8


def one_run(run: FinishedRun, level: int, title: str) -> str:
    """Its plots, its numbers, its config."""
    numbers = list(quantities(run))
    pictures = [
        picture(path.read_bytes(), f"{PLOTS.get(path.stem, path.stem)}. {_in_short(numbers)}", _caption(path), SMALL)
        for path in sorted(run.folder.glob("*.png"))
    ]
    rows = [[f"{one.group}, {one.name} ({one.unit})", number(one.value)] for one in numbers if one.value is not None]
    config = (run.folder / "config.yaml").read_text(encoding="utf-8")
    parts = [
        heading(level, title), paragraph(what_it_was(run)), gallery(pictures), table(title, ["quantity", "value"],
        rows, ["", NUMBER]), details("config", config), details("summary", json.dumps(run.summary, indent=2)),
    ]  # fmt: skip
    return "\n".join(parts)


def many_runs(folder: str, runs: Sequence[FinishedRun]) -> Iterator[str]:
    """What differs, curves, a table with what differs as columns, and each run with plots of its own."""
    different = varying(runs).sort_values(list(varying(runs)), key=_as_numbers) if len(runs) > 1 else varying(runs)
    runs = [runs[i] for i in different.index]
    different = different.reset_index(drop=True)
    names = " and ".join(map(str, different.columns))
    yield heading(2, f"{len(runs)} runs in {folder}" + (f", by {names}" if names else ""))
    yield paragraph(f"The first: {what_it_was(runs[0])}.")
    called = [", ".join(values) or run.name for run, values in zip(runs, different.to_numpy().tolist(), strict=True)]
    yield gallery(_figures([replace(run, name=name) for run, name in zip(runs, called, strict=True)], different))
    yield _table(runs, different)
    for run, name in zip(runs, called, strict=True):
        if any(run.folder.glob("*.png")):
            yield one_run(run, 3, name)


def varying(runs: Sequence[FinishedRun]) -> pd.DataFrame:
    """A row a run, a column a config key that differs, words before numbers; what another key decides is left out."""
    found = differences(runs).drop(index="outputs", errors="ignore")  # what was written changes no run
    shown = pd.DataFrame(dict(readable(str(key), list(found.loc[key])) for key in found.index), index=range(len(runs)))
    kept: list[str] = []
    for name in sorted(shown, key=lambda name: _are_numbers(shown[name])):
        if all(shown.groupby(other)[name].nunique().max() > 1 for other in kept):
            kept.append(str(name))
    return shown[kept]


def _are_numbers(values: pd.Series) -> bool:
    return bool(pd.to_numeric(values, errors="coerce").notna().all())


def _as_numbers(values: pd.Series) -> pd.Series:
    return pd.to_numeric(values) if _are_numbers(values) else values


def _figures(runs: Sequence[FinishedRun], different: pd.DataFrame) -> Iterator[str]:
    """A curve over a number that differs; and where the runs are few, their own curves over each other."""
    sweep = sweep_figure.arranged(different, pd.DataFrame([_short(run) for run in runs]))
    if sweep is not None:
        yield picture(curves.png(sweep_figure.draw(sweep)), sweep_figure.described(sweep), "", SMALL)
    tables = [run for run in runs if run.spans is not None and run.requests is not None]
    if 1 < len(tables) <= MOST_CURVES:
        yield picture(curves.png(curves.draw(tables)), curves.described(tables), "", SMALL)


def _table(runs: Sequence[FinishedRun], different: pd.DataFrame) -> str:
    head = [*map(str, different.columns), *SHOWN, "run"]
    rows = [[*said, *(number(_short(run)[name]) for name in SHOWN), run.name]
            for run, said in zip(runs, different.to_numpy().tolist(), strict=True)]  # fmt: skip
    return table("all runs", head, rows, [*[""] * len(different.columns), *[NUMBER] * len(SHOWN)])


def _short(run: FinishedRun) -> dict[str, float | None]:
    known = {(one.group, one.name): one.value for one in quantities(run)}
    return {name: known[key] for name, key in SHOWN.items()}


def _in_short(numbers: Sequence[Quantity]) -> str:
    known = {(one.group, one.name): one.value for one in numbers}
    return "; ".join(f"{name} {number(known[key])}" for name, key in SHOWN.items() if known[key] is not None) + "."


def _caption(path: Path) -> str:
    return PLOTS.get(path.stem, path.stem)
