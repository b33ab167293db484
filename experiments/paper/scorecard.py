"""The scorecard: published numbers against simulated ones, each with a tolerance and a margin.

The table has two verdicts: by the rows of reference.csv, and by the rows as they were before their
last change, which the column `was` records.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from testbed.experiments.paper.studies.study import Finding, RowKey, Study

REFERENCE = Path(__file__).with_name("reference.csv")
TURNS = "turns_under"
ON = "simulated on "
KEY = ["figure", "setting", "system", "quantity"]
COLUMNS = [*KEY, "published", "simulated", "error", "role", "part", "margin", "verdict", "before"]
COMPARED_WITH = ["unit", "tolerance", "check", "interval", "grid_ends", TURNS, "note", "cause"]
JUDGED = ("predict", "compare")
# Rows of the last two roles have a verdict in brackets and are not counted.
SHOWN = (*JUDGED, "goal", "derived")
PARTS = {
    "arithmetic": "arithmetic only",
    "memory": "memory and trace",
    "cost": "cost model and load",
}
Card = dict[RowKey, dict[str, object]]  # scored rows
LENGTHS = "lengths"
EMBEDDED = "embedded"
# Settings name them, and files of their lengths replace the embedded models.
DATASETS = ("sharegpt", "alpaca", "wmt", "chat")
CAUSES = Path(__file__).with_name("causes.yaml")
UNEXPLAINED = "unexplained"


def smallest_margin(row: Mapping[str, str], finding: Finding) -> float:
    """The smallest margin of the finding: of its numbers within the row's limits, and its own."""
    numbers = [value for value in _values(finding) if not isinstance(value, str)]
    if row["check"] == "ends":
        # The smallest number must be the range's lower end, the largest its upper
        ends = zip(row["published"].split("-"), (min(numbers), max(numbers)), strict=True)
        margins = [
            margin({**row, "check": "value", "published": end}, value) for end, value in ends
        ]
    else:
        margins = [margin(row, value) for value in numbers]
    if finding.margin is not None:
        margins.append(finding.margin)
    return min(margins)


def _values(finding: Finding) -> tuple[float | str, ...]:
    """The simulated values of a finding, which has one or several."""
    return finding.simulated if isinstance(finding.simulated, tuple) else (finding.simulated,)


def margin(row: Mapping[str, str], value: float) -> float:
    """The distance to the nearest limit: 1 in the middle, 0 at a limit, negative outside.

    The unit is half the width of the passing range, which is the tolerance of a published value;
    for an upper bound it is the bound.
    """
    low, high = limits(row["check"], row["published"], row["tolerance"])
    if low == -inf:
        return (high - value) / high
    return min(value - low, high - value) / ((high - low) / 2)


def limits(check: str, published: str, tolerance: str) -> tuple[float, float]:
    """The smallest and the largest simulated number that passes."""
    match = re.search(r"\d+(\.\d+)?", tolerance)
    amount = float(match[0]) if match else 0.0
    if check == "bound":
        return -inf, amount if match else float(published)
    if check == "range":
        low, high = (float(end) for end in published.split("-"))
        return low - amount, high + amount
    value = float(published.removeprefix("about "))
    if "%" in tolerance:
        amount *= abs(value) / 100
    return value - amount, value + amount


def error(published: str, value: float | str, tolerance: str) -> str:
    """The difference in the unit of the tolerance; empty unless both are single numbers."""
    try:
        difference = float(value) - float(published)
    except ValueError:
        return ""
    if "point" in tolerance:
        return f"{difference:+.2f} points"
    if float(published) == 0:
        return f"{difference:+.2f}"
    return f"{100 * difference / float(published):+.1f}%"


def reference() -> pd.DataFrame:
    """The rows of reference.csv, with published numbers as text."""
    return pd.read_csv(REFERENCE, dtype=str, keep_default_na=False).rename(
        columns={"value": "published"}
    )


def published(figure: str) -> pd.DataFrame:
    """setting, system, quantity and published number of a figure's rows with a single number."""
    rows = reference().query("figure == @figure")
    numbers = pd.to_numeric(rows["published"], errors="coerce")
    return rows.assign(published=numbers)[numbers.notna()][
        ["setting", "system", "quantity", "published"]
    ]


def key_of(row: Mapping[str, Any]) -> RowKey:
    """The four columns that identify a row."""
    figure, setting, system, quantity = (row[name] for name in KEY)
    return figure, setting, system, quantity


def scorecard(findings: Iterable[Finding], covers: Sequence[str]) -> pd.DataFrame:
    """A row for each reference row of these figures, simulated or not.

    After the rows of a figure follow its findings without a published counterpart.
    """
    findings = list(findings)
    finding_of: dict[Any, Finding] = {finding[:4]: finding for finding in findings}
    rows: list[dict[str, object]] = []
    for figure in covers:
        listed = reference().query("figure == @figure").to_dict("records")
        rows += [scored(row, finding_of.get(key_of(row))) for row in listed]
        published_systems = {key_of(row)[1:3] for row in listed}
        rows += [
            finding._asdict()
            for finding in findings
            if finding.figure == figure
            and (finding.setting, finding.system) not in published_systems
        ]
    table = pd.DataFrame(rows, columns=[*COLUMNS, *COMPARED_WITH], dtype=object)
    return table.where(table.notna(), "")


def verdicts(study: Study, table: pd.DataFrame, keys: Collection[RowKey]) -> Card:
    """The scored rows of a study's table whose keys are among `keys`."""
    finding_of: dict[Any, Finding] = {finding[:4]: finding for finding in study.findings(table)}
    rows = {key_of(row): row for row in reference().to_dict("records")}
    return {key: scored(rows[key], finding_of[key]) for key in keys if key in finding_of}


def scored(row: dict[str, str], finding: Finding | None) -> dict[str, object]:
    """A reference row with its verdicts, error, margin and cause.

    A row that only feeds the simulation has no verdict.
    """
    judgement = {"verdict": verdict(row, finding), "before": verdict(as_before(row), finding)}
    judgement["cause"] = cause_of(key_of(row)) if judgement["verdict"] == "miss" else ""
    if finding is None:
        note = "not simulated" if judgement["verdict"] else ""
        return {**row, "note": note, **judgement}
    simulated: object = finding.simulated
    if isinstance(finding.simulated, tuple):
        simulated = " / ".join(map(short, finding.simulated))
    errors = [error(row["published"], value, row["tolerance"]) for value in _values(finding)]
    return {
        **row,
        "simulated": simulated,
        "error": " / ".join(filter(None, errors)),
        "margin": smallest_margin(row, finding) if row["role"] in SHOWN else None,
        **judgement,
        "interval": finding.interval,
        "grid_ends": finding.grid_ends,
        "note": finding.note,
    }


def cause_of(key: RowKey) -> str:
    """The cause of a missed row in causes.yaml, and the command that tests it."""
    figure, setting, system, _ = key
    for entry in causes():
        is_of_row = setting in entry["rows"].get(figure, ())
        if is_of_row and entry.get("system", system) == system:
            return f"{entry['cause']} (test: {entry['test']})"
    return UNEXPLAINED


def verdict(row: dict[str, str], finding: Finding | None) -> str:
    """pass or miss; in brackets for a row that is not counted, empty for a row without verdict."""
    if row["role"] not in SHOWN:
        return ""
    text = "pass" if finding is not None and smallest_margin(row, finding) >= 0 else "miss"
    return text if row["role"] in JUDGED else f"({text})"


def as_before(row: dict[str, str]) -> dict[str, str]:
    """The row before its last change; a row that was absent has no role."""
    if row["was"] == "absent":
        return {**row, "role": ""}
    return row | dict(part.split("=", 1) for part in row["was"].split(";") if part)


def next_to_other(card: pd.DataFrame, other: pd.DataFrame, gpu: str) -> pd.DataFrame:
    """The scorecard with a column of the values simulated on another GPU, which are not judged."""
    simulated = other.set_index(KEY)["simulated"]
    cells = [simulated.get(key_of(row), "") for row in card.to_dict("records")]
    return card.assign(**{f"{ON}{gpu}": pd.Series(cells, index=card.index, dtype=object)})


def with_lengths(card: pd.DataFrame, replayed: Collection[str]) -> pd.DataFrame:
    """The scorecard with a column that says which rows rest on an embedded model of lengths.

    replayed: names of the data sets whose own lengths were replayed. Arithmetic has no lengths.
    """
    embedded = [
        EMBEDDED
        if row["part"] != "arithmetic"
        and any(name in row["setting"] and name not in replayed for name in DATASETS)
        else ""
        for row in card.to_dict("records")
    ]
    return card.assign(**{LENGTHS: pd.Series(embedded, index=card.index, dtype=object)})


def short(value: object) -> str:
    """The text of a cell, with about four digits of a number."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@cache
def causes() -> list[dict[str, Any]]:
    """All of causes.yaml: rows (settings by figure), cause, and the command that tests it."""
    entries: list[dict[str, Any]] = yaml.safe_load(CAUSES.read_text(encoding="utf-8"))
    return entries
