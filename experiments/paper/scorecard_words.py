"""The scorecard in words: the terminal's table, what stands above it, and what follows it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from testbed.experiments.paper.scorecard import EMBEDDED, LENGTHS, ON, PARTS, SHOWN, short

PICKLE = "sharegpt_opt_text_completion_length.pkl"
# The meaning of a row's numbers, if its quantity does not name it.
QUANTITIES = {
    "sustained_rate_ratio": "ratio of sustained rates",
    "sustained_rate_ratio_ends": "ratio of sustained rates, smallest and largest",
    "sustained_rate_ratio_mean": "ratio of sustained rates, mean",
    "sustained_rate_ratio_max": "ratio of sustained rates, largest",
    "sustained_rate_ratio_grows": "ratio of sustained rates grows",
    "sustained_rate_ratio_above": "ratio of sustained rates is above",
    "mean_input": "mean prompt",
    "mean_input_ratio": "ratio of mean prompts",
    "mean_output_ratio": "ratio of mean outputs",
}
SIGNS = {"percent": "%", "order": ""}
VERDICTS = {
    "pass": "within",
    "miss": "outside",
    "(pass)": "within, not counted",
    "(miss)": "outside, not counted",
}
ROLES = {"input": "input", "calibrate": "fitted to"}
NOT_JUDGED = "not judged"
STYLES = {"within": "green", "outside": "red"}


def card_table(card: pd.DataFrame) -> Table:
    """The scorecard for the terminal, figure by figure; scorecard.csv has every column."""
    table = Table("", title="\n".join(heading(card)), title_justify="left", box=SIMPLE_HEAD)
    others = [name for name in card if name.startswith(ON)]
    for name in ("published", "simulated", *others, "difference"):
        table.add_column(name, overflow="fold", justify="right")
    table.add_column("tolerance", overflow="fold")
    table.add_column("result", overflow="fold")
    for (figure, setting), rows in card.groupby(["figure", "setting"], sort=False):
        table.add_row(f"{figure} {setting}", style="bold")
        for row in rows.to_dict("records"):
            name = what_of({**row, "setting": ""})
            values = [short(row[column]) for column in ("simulated", *others, "error")]
            result = result_of(row)
            cells = [name, published_words(row), *values, tolerance_words(row), result]
            table.add_row(*cells, style=STYLES.get(result, "dim"))
    return table


def heading(card: pd.DataFrame) -> Iterator[str]:
    """The lines above a scorecard: its counts, and which lengths it rests on."""
    yield f"Scorecard, published results within their tolerance: {counted(card)}"
    if "before" in card and counted(card) != counted(card, "before"):
        yield f"by the list of results before its last change: {counted(card, 'before')}"
    if LENGTHS not in card or not card[LENGTHS].eq(EMBEDDED).any():
        return
    num_open = sum(result_of(row) == NOT_JUDGED for row in card.to_dict("records"))
    yield (
        "Request lengths were drawn from embedded models, which are close to the paper's but are "
        "not the same rows."
    )
    if num_open:
        yield (
            f"{num_open} results outside their tolerance are not judged for that reason: "
            "--lengths gives the paper's own."
        )


def result_of(row: Mapping[Any, Any]) -> str:
    """A row's result in words; a miss with embedded lengths is no judgement."""
    if row["verdict"] == "miss" and row.get(LENGTHS) == EMBEDDED:
        return NOT_JUDGED
    if row["verdict"]:
        return VERDICTS[row["verdict"]]
    return ROLES.get(row["role"], "not published")


def published_words(row: Mapping[Any, Any]) -> str:
    """The published number with its unit."""
    unit = row.get("unit", "")
    sign = SIGNS.get(unit, f" {unit}")
    return f"{short(row['published'])}{sign}" if row["published"] else ""


def tolerance_words(row: Mapping[Any, Any]) -> str:
    """The tolerance about the published number, in words; empty if it is not judged."""
    if row.get("role") not in SHOWN:
        return ""
    if row["tolerance"] == "none":
        return "at most" if row.get("check") == "bound" else "in the range"
    return str(row["tolerance"]).replace("; 10% is one unit", "")


def what_of(row: Mapping[Any, Any]) -> str:
    """The setting, the system and the quantity of a row in words."""
    where = " ".join(filter(None, (row["setting"], row["system"])))
    quantity = QUANTITIES.get(row["quantity"], row["quantity"].replace("_", " "))
    return f"{where}: {quantity}".removeprefix(": ")


def counted(card: pd.DataFrame, column: str = "verdict") -> str:
    """The number of judged rows inside their tolerance, by part."""
    judged = card[card[column].isin(["pass", "miss"])]
    counts = judged[column].eq("pass").groupby(judged["part"]).agg(["sum", "size"]).T
    parts = [
        f"{' of '.join(map(str, counts[part]))} ({PARTS[part]})" for part in PARTS if part in counts
    ]
    return "; ".join(parts) or "no published number is judged here"


def remarks(card: pd.DataFrame, files: Collection[str], figures: Sequence[str]) -> Iterator[str]:
    """The lines below a scorecard: words of its results, causes of misses, the way to the lengths.

    files: names of length files that were replayed.
    """
    verdicts = card["verdict"].fillna("")
    if not verdicts.any():
        return
    if verdicts.str.startswith("(").any():
        yield "not counted: a number that follows from other rows, or a goal of ours"
    for row in card[verdicts == "miss"].to_dict("records"):
        if result_of(row) != NOT_JUDGED:
            yield f"{row['figure']} {what_of({**row, 'setting': ''})}: {row['cause']}"
    if "sharegpt" not in files:
        yield (
            f"The paper's lengths are datasets/{PICKLE} of the repository sosp-ae-39/sosp-ae-astra "
            f"on GitHub:\n"
            f"  testbed import lengths {PICKLE} sharegpt.csv\n"
            f"  testbed reproduce {' '.join(figures)} --lengths sharegpt.csv"
        )
