"""Predictions of loads, made before these are served: written with their time and the digests of
what they rest on, then shown beside what was measured.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from testbed.experiments.cli.output import plain_table, show
from testbed.experiments.runs.whole_files import write_json
from testbed.run.config import RunConfig
from testbed.run.simulate import run
from testbed.study.cost_spread import replications
from testbed.study.sensitivity import run_intervals

HEAD = ("load", "metric", "measured", "predicted", "lowest", "highest", "error", "is")
Figures = Callable[[Mapping[str, Any], float], dict[str, float]]


def digest(path: Path) -> str:
    """Of a file that a prediction rests on."""
    return sha256(path.read_bytes()).hexdigest()


def predicted(config: RunConfig, figures: Figures) -> dict[str, dict[str, float]]:
    """The mean figures of a run's replications; the lowest and highest of these and of its
    variations.
    """
    summaries = [run(replication).summary for replication in replications(config)]
    every = [figures(summary, 1.0) for summary in summaries]
    means = {name: fmean(each[name] for each in every) for name in every[0]}
    intervals = run_intervals(config, *summaries, figures_of=figures)
    lowest, highest = ({name: ends[i] for name, ends in intervals.items()} for i in (0, 1))
    return {"figures": means, "lowest": lowest, "highest": highest}


def write_predictions(out: Path, loads: Path, **contents: Any) -> None:
    """Write predictions of the loads in a file, and print their digest."""
    made_at = datetime.now(UTC).isoformat()
    write_json(out, {"made_at": made_at, "loads_sha256": digest(loads), **contents})
    print(f"{out}: sha256 {digest(out)}, made at {made_at}")
    for name, prediction in contents["predictions"].items():
        print(name, json.dumps(prediction))


def show_compared(
    path: Path,
    metrics: Sequence[str],
    measured: Callable[[str], Sequence[Mapping[str, float]]],
) -> None:
    """Print the predictions in a file beside what was measured.

    measured: the figures of a load's repeats; empty if it was not served.
    """
    answer = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        _row(name, metric, prediction, [each[metric] for each in repeats])
        for name, prediction in answer["predictions"].items()
        for repeats in [measured(name)]
        for metric in (metrics if repeats else ())
    ]
    show(f"made at {answer['made_at']}", plain_table(HEAD, rows))


def _row(
    name: str,
    metric: str,
    prediction: Mapping[str, Any],
    repeats: Sequence[float],
) -> Iterable[str]:
    ours, low, high = (prediction[key][metric] for key in ("figures", "lowest", "highest"))
    mean = float(np.mean(repeats))
    spread = f" ({min(repeats):.4g} to {max(repeats):.4g})" if len(repeats) > 1 else ""
    error = f"{100 * (ours / mean - 1):+.1f}%" if mean else f"{ours:+.0f}"
    covered = "covered" if low <= mean <= high else "not covered"
    numbers = (f"{value:.4g}" for value in (ours, low, high))
    judged = "in range" if min(repeats) <= ours <= max(repeats) else "outside"
    return name, metric, f"{mean:.4g}{spread}", *numbers, error, f"{judged}, {covered}"
