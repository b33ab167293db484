"""Published numbers against simulated ones; a row passes inside the tolerance that stands beside it."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from rich.table import Table

from experiments.paper.studies.study import Finding

REFERENCE = Path(__file__).with_name("reference.csv")
COLUMNS = ["figure", "setting", "system", "quantity", "published", "simulated", "error", "role", "verdict"]
KEY = COLUMNS[:4]
NUMBERS = ("published", "simulated", "error")


def reference() -> pd.DataFrame:
    """Every published number, as text."""
    return pd.read_csv(REFERENCE, dtype=str, keep_default_na=False).rename(columns={"value": "published"})


def scorecard(findings: Iterable[Finding], covers: Sequence[str]) -> pd.DataFrame:
    """Every reference row of these figures, simulated or not; after them settings that the paper does not have."""
    found = list(findings)
    known = {tuple(getattr(f, key) for key in KEY): f for f in found}
    rows: list[dict[str, object]] = []
    for figure in covers:
        published = reference().query("figure == @figure")
        rows += [scored(row, known.get(tuple(row[key] for key in KEY))) for row in published.to_dict("records")]
        beside = [f for f in found if f.figure == figure and f.setting not in set(published["setting"])]
        rows += [f._asdict() for f in beside]
    table = pd.DataFrame(rows, columns=[*COLUMNS, "tolerance", "interval", "note"], dtype=object)
    return table.where(table.notna(), "")


def scored(row: dict[str, str], finding: Finding | None) -> dict[str, object]:
    """One reference row with its verdict; rows that only feed the simulation get none."""
    judged = row["role"] in ("predict", "compare")
    if finding is None:
        note = "not simulated" if judged else ""
        return {**row, "simulated": "", "error": "", "verdict": "miss" if judged else "", "note": note}
    value, tolerance = finding.simulated, row["tolerance"]
    values = value if isinstance(value, tuple) else (value,)
    holds = finding.holds if finding.holds is not None else all(within(row, one) for one in values)
    found = {
        "simulated": " / ".join(short(one) for one in value) if isinstance(value, tuple) else value,
        "error": " / ".join(filter(None, (error(row["published"], one, tolerance) for one in values))),
        "verdict": ("pass" if holds else "miss") if judged else "",
    }
    return {**row, **found, "interval": finding.interval, "note": finding.note}


def within(row: dict[str, str], value: float | str) -> bool:
    """Whether a simulated number is inside the tolerance of a reference row."""
    low, high = limits(row["check"], row["published"], row["tolerance"])
    return not isinstance(value, str) and low <= value <= high


def limits(check: str, published: str, tolerance: str) -> tuple[float, float]:
    """The smallest and the largest simulated number that passes."""
    amount = float(match[0]) if (match := re.search(r"\d+(\.\d+)?", tolerance)) else 0.0
    if check == "bound":
        return -float("inf"), amount if match else float(published)
    if check == "range":
        low, high = (float(end) for end in published.split("-"))
        return low - amount, high + amount
    value = float(published.removeprefix("about "))
    if "%" in tolerance:
        amount *= abs(value) / 100
    return value - amount, value + amount


def error(published: str, value: float | str, tolerance: str) -> str:
    """The difference, in the unit of the tolerance; empty where the published thing is no single number."""
    try:
        difference = float(value) - float(published)
    except ValueError:
        return ""
    if "point" in tolerance:
        return f"{difference:+.2f} points"
    return f"{100 * difference / float(published):+.1f}%" if float(published) else f"{difference:+.2f}"


def card_table(card: pd.DataFrame) -> Table:
    """The scorecard for the terminal."""
    judged = card[card["verdict"] != ""]
    passed = int((judged["verdict"] == "pass").sum())
    table = Table(title=f"Scorecard: {passed} of {len(judged)} rows pass", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, overflow="fold", justify="right" if name in NUMBERS else "left")
    for row in card.to_dict("records"):
        style = {"miss": "red", "pass": "green"}.get(str(row["verdict"]), "dim")
        table.add_row(*(short(row[name]) for name in COLUMNS), style=style)
    return table


def short(value: object) -> str:
    """A cell for people."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
