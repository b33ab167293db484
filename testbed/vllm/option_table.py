"""Every option of `vllm serve`, in one of three classes: understood, harmless or refused."""

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean
from testbed.vllm.releases import version_of
from testbed.vllm.value_forms import problem_of

UNDERSTOOD, HARMLESS, REFUSED = "understood", "harmless", "refused"
COUNTED = "counted"  # for_memory of an option whose memory is in the answer


class Option(NamedTuple):
    """An option of vLLM's parser. `reason` says why it is harmless, or which part is not modelled.

    takes_several: all words up to the next option are its values.
    neutral: values that mean what vLLM does without the option. for_memory: what to know if only
    memory is asked for, of one that changes the time of iterations; empty: it is refused there too.
    of_zeros: the option to give in the place of this one with zeros; empty: there is none.
    ends_start: vLLM does not start with it, for this reason.
    """

    name: str
    kind: str
    reason: str
    is_switch: bool
    takes_several: bool = False
    neutral: tuple[str, ...] = ()
    for_memory: str = ""
    of_zeros: str = ""
    ends_start: bool = False


@cache
def _file() -> dict[str, Any]:
    path = Path(__file__).with_name("options.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def options() -> dict[str, Option]:
    """The options by name."""
    values = _file()
    switches, several = set(values["switches"]), set(values["several"])
    table = {name: Option(name, UNDERSTOOD, "", name in switches) for name in values["understood"]}
    for part in values[HARMLESS]:
        for name in part["options"]:
            table[name] = Option(name, HARMLESS, part["reason"], name in switches, name in several)
    for part in values[REFUSED]:
        for name in part["options"]:
            table[name] = Option(
                name=name,
                kind=REFUSED,
                reason=part["part"],
                is_switch=name in switches,
                takes_several=name in several,
                neutral=tuple(values["neutral"].get(name, ())),
                for_memory=part.get("for_memory", ""),
                of_zeros=part.get("of_zeros", ""),
                ends_start=part.get("ends_start", False),
            )
    return table


@cache
def parsers() -> dict[str, dict[str, str]]:
    """The options that the parser of each release has, by its number, with the form of their values
    (value_forms); empty: server.py reads them, or it has none.
    """
    paths = sorted(Path(__file__).with_name("parsers").glob("*.txt"))
    return {path.stem: dict(map(_entry, path.open(encoding="utf-8"))) for path in paths}


def _entry(line: str) -> tuple[str, str]:
    name, _, form = line.strip().partition(" ")
    return name, form


def releases_of(name: str) -> list[str]:
    """The releases whose parser has an option, of those whose parsers are listed."""
    return [number for number, names in parsers().items() if name in names]


def may_have(number: str, name: str) -> bool:
    """True if the parser of a release has an option; of one that is not listed, whether the parser
    before it or the one behind it has.
    """
    listed, wanted = parsers(), version_of(number)
    if number in listed:
        return name in listed[number]
    older = [other for other in listed if version_of(other) < wanted]
    newer = [other for other in listed if version_of(other) > wanted]
    return any(name in listed[other] for other in (*older[-1:], *newer[:1]))


def refused_by_parser(number: str, option: Option, value: str) -> str:
    """Why the parser of a release refuses a value of an option; empty: it takes it."""
    form = parsers().get(number, {}).get(option.name, "")
    values = value.split() if option.takes_several else [value]
    return next(filter(None, (problem_of(each, form) for each in values)), "")


def options_of(names: Iterable[str]) -> dict[str, Option]:
    """The options of these names, which vLLM's parser has."""
    table = options()
    return {name: table[name] for name in names}


def _opposite(name: str) -> str:
    """The switch that a word switches off: --no-NAME, --disable-NAME of --enable-NAME, and the
    reverse.
    """
    for prefix, of_switch in (
        ("--no-", "--"),
        ("--disable-", "--enable-"),
        ("--enable-", "--disable-"),
    ):
        if name.startswith(prefix):
            return of_switch + name.removeprefix(prefix)
    return ""


def option_named(word: str, where: str) -> tuple[Option, bool]:
    """The option of a word such as -tp or --no-async-scheduling, and whether it is switched off.

    Raises InputError, which begins with `if`, for a word that is no option of vLLM's.
    """
    table, short = options(), _file()["short"]
    name = short.get(word) or f"--{word.lstrip('-').replace('_', '-')}"
    if name in table and (word in short or word.startswith("--")):
        return table[name], False
    longer = [full for full in table if full.startswith(name)]
    if word.startswith("--") and len(longer) == 1:  # vLLM's parser takes unique beginnings too
        return table[longer[0]], False
    positive = _opposite(name)
    if positive in table and table[positive].is_switch:
        return table[positive], True
    if name in (gone := _file()["gone"]):
        problem = f"is no option since vLLM {next(iter(parsers()))} or an earlier release"
        raise InputError(key=f"{where}: {word}", problem=problem, remedy=gone[name])
    hint = did_you_mean(name if word.startswith("--") else word, [*table, *short])
    raise InputError(key=f"{where}: {word}", problem=f"is no option of vLLM's server{hint}")
