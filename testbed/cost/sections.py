"""A profile's file and its sections of measured points; PROFILE_FORMAT.md describes both."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from testbed.core.errors import InputError

PROFILES = Path(__file__).parent / "profiles"
FORMAT = 1
BETWEEN = ("line", "next")
PS_PER_US = 10**6
Rows = list[tuple[tuple[Any, ...], int]]
T = TypeVar("T")


def read_profile(path: str | Path) -> dict[str, Any]:
    """A profile by path, or one that ships with the package by name such as `h200-opt-13b-tp1`."""
    file = Path(path)
    if not file.is_file():
        file = PROFILES / f"{path}.json"
    if not file.is_file():
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.json")))
        raise InputError(f"no profile {path}: neither a file nor one of {known}")
    try:
        profile: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: not a profile, which is a JSON file ({error})") from error
    if not isinstance(profile, dict):
        raise InputError(f"{file}: not a profile, which is a JSON object with 'format': {FORMAT}")
    if profile.get("format") != FORMAT:
        raise InputError(f"{file.name}: profile format {profile.get('format')}, this version reads {FORMAT}")
    return profile


def has(profile: Mapping[str, Any], section: str) -> bool:
    """Whether the profile has that section."""
    return section in profile["sections"]


def rows(profile: Mapping[str, Any], section: str) -> Rows:
    """A section's points as (key, median in picoseconds)."""
    if not has(profile, section):
        missing(profile, section)
    body = profile["sections"][section]
    width = len(body["axes"])
    return [(tuple(row[:width]), round(row[width] * PS_PER_US)) for row in body["points"]]


def missing(profile: Mapping[str, Any], section: str) -> NoReturn:
    """Name the section that a price needs and the profile has not."""
    name, there = profile["model"]["name"], ", ".join(profile["sections"])
    raise InputError(f"the profile of {name} has no section {section}, which this run needs; it has {there}")


def included(profile: Mapping[str, Any], section: str) -> bool:
    """Whether another section says that its times hold this one's already."""
    return any(section in body.get("includes", ()) for body in profile["sections"].values())


def jumps(profile: Mapping[str, Any], section: str) -> bool:
    """Whether a section's times jump from one measured count to the next, instead of going in a line between them."""
    between = profile["sections"].get(section, {}).get("between", "line")
    if between not in BETWEEN:
        name = profile["model"]["name"]
        raise InputError(f"section {section} of {name}: between is {between!r}, not one of {', '.join(BETWEEN)}")
    return bool(between == "next")


def table(profile: Mapping[str, Any], section: str, make: Callable[[Rows], T]) -> T | Callable[..., NoReturn]:
    """The table of a section; of one that is not there, a stand-in that says so once a price is asked of it."""
    if has(profile, section):
        return make(rows(profile, section))
    return lambda *asked: missing(profile, section)
