"""Keys of a config that are nowhere, refused with the key that was perhaps meant."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from experiments.commands.run_help import config_dirs, values
from experiments.runs.known_choices import GROUPS
from testbed.core.errors import InputError

UNKNOWN = (
    re.compile(r"Could not override '(?P<key>[^']+)'\.\s+To append to your config use"),
    re.compile(r"Could not delete from config\. '(?P<key>[^']+)' does not exist"),
)
VERY = 0.8  # how like a whole key must be: long ones share much by chance
ELSEWHERE = ("hydra.run.dir", "hydra.sweep.dir", "hydra/launcher")


@contextmanager
def keys_explained(arguments: Sequence[str]) -> Iterator[None]:
    """Let an unknown key among the arguments be told in our words, with the nearest one that there is."""
    try:
        yield
    except HydraException as error:
        found = next((match["key"] for pattern in UNKNOWN if (match := pattern.search(str(error)))), None)
        if found is None:
            raise
        raise InputError(no_key(found, keys_of(arguments))) from error


def no_key(key: str, known: Iterable[str]) -> str:
    """The refusal of a key."""
    near = nearest(key, known)
    hint = f"did you mean {near}?" if near else f"+{key}=... adds it for a class of your own;"
    return f"no key {key!r}; {hint} testbed run --help shows all keys"


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that is most like this one: of the same last part, beside it, or as a whole."""
    names = [name for name in known if name not in GROUPS or "." not in key]  # a group is not what stands in it
    above, _, last = key.rpartition(".")
    same = [name for name in names if name.rpartition(".")[2] == last]
    beside = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == above}
    close = [beside[one] for one in get_close_matches(last, beside, 1)]
    return next(iter([*same, *close, *get_close_matches(key, names, 1, VERY)]), None)


def keys_of(arguments: Sequence[str]) -> list[str]:
    """Every key of the config that the arguments choose, and the groups."""
    chosen = dict(one.lstrip("+").partition("=")[::2] for one in arguments if "=" in one and not one.startswith("-"))
    try:
        lines = list(values(chosen, list(config_dirs(arguments))))
    except InputError:  # a choice that has no file of its own, a plug-in for example
        lines = list(values({}, []))
    return [*dotted(yaml.safe_load("\n".join(lines))), *GROUPS, *ELSEWHERE]


def check_key(key: str, config: DictConfig, also: Iterable[str] = ()) -> None:
    """A key must be one of the config, though it may have no value yet; `also` are other names to suggest."""
    above, _, last = key.rpartition(".")
    node = OmegaConf.select(config, above) if above else config
    if not isinstance(node, DictConfig) or last not in list(node):
        raise InputError(no_key(key, [*also, *dotted(OmegaConf.to_container(config)), *GROUPS]))


def dotted(values: Any, above: str = "") -> Iterator[str]:
    """The keys of nested mappings, from the outermost on."""
    for key, value in values.items():
        if not str(key).startswith("_"):
            yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from dotted(value, f"{above}{key}.")
