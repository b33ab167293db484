"""Work as the columns of a table, and back: what an engine writes beside its times, and what a reader prices."""

import json
from collections.abc import Mapping
from typing import Any

from testbed.core.errors import InputError
from testbed.cost.model import Moved, Work

PREFIX = "work_"
WORK_COLUMNS = tuple(PREFIX + name for name in Work._fields)
CAME_LATER = {"forks": 0}  # what a row of an engine that did not write it yet means: none was counted
ALWAYS = tuple(PREFIX + name for name in Work._fields if name not in CAME_LATER)
LISTS = ("prefill", "copies", "moves", "extra")


def work_cells(work: Work) -> list[Any]:
    """The cells of WORK_COLUMNS: numbers, and lists as JSON."""
    return [
        json.dumps(value, separators=(",", ":")) if name in LISTS else value
        for name, value in zip(Work._fields, work, strict=True)
    ]


def read_work(row: Mapping[str, Any]) -> Work:
    """The work of a row, whose cells may be texts or numbers."""
    values: dict[str, Any] = {}
    for name in Work._fields:
        try:
            cell = row.get(PREFIX + name, CAME_LATER[name]) if name in CAME_LATER else row[PREFIX + name]
            values[name] = tuple(tuple(one) for one in json.loads(cell)) if name in LISTS else int(cell)
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"{PREFIX}{name} is missing or unreadable ({error}): is it of a GPU run?") from None
    values["moves"] = tuple(Moved(*one) for one in values["moves"])
    return Work(**values)
