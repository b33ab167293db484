"""Forms of the values that a release's parser takes for an option, in the words of parsers/*.txt:
`int`, `float` or `size` with bounds, `of` words, `json`, or the `keys` of a table in JSON. A form
with ? takes None too.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from testbed.core.spelling import did_you_mean

BOUND = re.compile(r"(?P<sign>[<>]=?)(?P<limit>.+)")
SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
SCALED = re.compile(r"\d+(\.\d+(?![KMGT]))?[kmgtKMGT]")  # 8k, 1.5k


def problem_of(value: str, form: str) -> str:
    """Why the parser refuses a value; empty: it takes it."""
    kind, *details = form.split() or ["any"]
    if kind.endswith("?") and value in ("", "None"):
        return ""
    return FORMS[kind.removesuffix("?")](value, details)


def _any(value: str, details: Sequence[str]) -> str:
    return ""


def _whole(value: str, bounds: Sequence[str]) -> str:
    try:
        number = int(value)
    except ValueError:
        return "is no whole number"
    return _outside(number, bounds)


def _number(value: str, bounds: Sequence[str]) -> str:
    try:
        number = float(value)
    except ValueError:
        return "is no number"
    return _outside(number, bounds)


def _outside(number: float, bounds: Sequence[str]) -> str:
    limits = [match.groups() for match in map(BOUND.fullmatch, bounds) if match]
    if all(SIGNS[sign](number, float(limit)) for sign, limit in limits):
        return ""
    return f"must be {' and '.join(bounds)}"


def _size(value: str, bounds: Sequence[str]) -> str:
    return "" if SCALED.fullmatch(value) else _whole(value, bounds)


def _one_of(value: str, choices: Sequence[str]) -> str:
    return "" if value in choices else f"must be one of {', '.join(choices)}"


def _one_in_any_case(value: str, choices: Sequence[str]) -> str:
    return _one_of(value.lower().replace("-", "_"), choices)


def _json(value: str, details: Sequence[str]) -> str:
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return "is no JSON"
    return ""


def _table(value: str, keys: Sequence[str]) -> str:
    if problem := _json(value, keys):
        return problem
    table = json.loads(value)
    if not isinstance(table, dict):
        return "is no table in JSON"
    unknown = [key for key in table if key not in keys]
    return f"has no key {unknown[0]}{did_you_mean(unknown[0], keys)}" if unknown else ""


FORMS: Mapping[str, Callable[[str, Sequence[str]], str]] = {
    "any": _any,
    "int": _whole,
    "float": _number,
    "size": _size,
    "of": _one_of,
    "of-any-case": _one_in_any_case,
    "json": _json,
    "keys": _table,
}
