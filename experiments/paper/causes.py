"""Why a row misses: what is known of it, with the command that tests it; else that it is unexplained."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed.experiments.paper.studies.study import RowKey

CAUSES = Path(__file__).with_name("causes.yaml")
UNEXPLAINED = "unexplained"


@cache
def causes() -> list[dict[str, Any]]:
    """All of causes.yaml: rows (settings by figure), cause, and the command that tests it."""
    entries: list[dict[str, Any]] = yaml.safe_load(CAUSES.read_text(encoding="utf-8"))
    return entries


def cause_of(key: RowKey) -> str:
    """The cause of a row's miss, and what tests it."""
    figure, setting, system, _ = key
    for entry in causes():
        if setting in entry["rows"].get(figure, ()) and entry.get("system", system) == system:
            return f"{entry['cause']} (test: {entry['test']})"
    return UNEXPLAINED
