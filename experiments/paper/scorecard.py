"""Published numbers against simulated ones; a row passes inside the tolerance that stands beside it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from rich.table import Table

from experiments.paper.margins import margin
from experiments.paper.studies.study import Finding

REFERENCE = Path(__file__).with_name("reference.csv")
TURNS = "turns_under"
COLUMNS = [
    "figure",
    "setting",
    "system",
    "quantity",
    "published",
    "simulated",
    "error",
    "role",
    "part",
    "margin",
    "verdict",
]
BESIDE = ["tolerance", "interval", "grid_ends", TURNS, "note"]
KEY = COLUMNS[:4]
NUMBERS = ("published", "simulated", "error", "margin")
JUDGED = ("predict", "compare")
PARTS = {
    "arithmetic": "no price matters",
    "memory": "memory and trace",
    "price": "prices and load",
}


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
    table = pd.DataFrame(rows, columns=[*COLUMNS, *BESIDE], dtype=object)
    return table.where(table.notna(), "")


def scored(row: dict[str, str], finding: Finding | None) -> dict[str, object]:
    """One reference row with its verdict; rows that only feed the simulation get none."""
    judged = row["role"] in JUDGED
    if finding is None:
        note = "not simulated" if judged else ""
        return {**row, "simulated": "", "error": "", "verdict": "miss" if judged else "", "note": note}
    value, tolerance = finding.simulated, row["tolerance"]
    values = value if isinstance(value, tuple) else (value,)
    inside = smallest_margin(row, finding) if judged else None
    found = {
        "simulated": " / ".join(short(one) for one in value) if isinstance(value, tuple) else value,
        "error": " / ".join(filter(None, (error(row["published"], one, tolerance) for one in values))),
        "margin": inside,
        "verdict": "" if inside is None else "pass" if inside >= 0 else "miss",
    }
    return {**row, **found, "interval": finding.interval, "grid_ends": finding.grid_ends, "note": finding.note}


def smallest_margin(row: dict[str, str], finding: Finding) -> float:
    """The smallest margin of all that the finding claims; its numbers are held against the row's own limits."""
    values = finding.simulated if isinstance(finding.simulated, tuple) else (finding.simulated,)
    margins = [margin(row, value) for value in values if not isinstance(value, str)]
    return min([*margins, *([] if finding.margin is None else [finding.margin])])


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
    table = Table(title=f"Scorecard: {counted(card)}", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, overflow="fold", justify="right" if name in NUMBERS else "left")
    for row in card.to_dict("records"):
        style = {"miss": "red", "pass": "green"}.get(str(row["verdict"]), "dim")
        table.add_row(*(short(row[name]) for name in COLUMNS), style=style)
    return table


def counted(card: pd.DataFrame) -> str:
    """How many judged rows are inside their tolerance, by part; the sum alone would say less than it seems to."""
    judged = card[card["verdict"] != ""]
    by_part = judged.groupby("part")["verdict"]
    passed, rows = by_part.apply(lambda verdicts: (verdicts == "pass").sum()), by_part.size()
    parts = [f"{part} ({meaning}) {passed[part]} of {rows[part]}" for part, meaning in PARTS.items() if part in rows]
    return "; ".join(parts) if parts else "no published number is judged here"


def short(value: object) -> str:
    """A cell for people."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
