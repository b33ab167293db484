"""Options composed on plain mappings: what Hydra composes, in a sixth of its time. Raises
`NeedsHydra` where Hydra must.
"""

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.defaults_lists import NeedsHydra, Node, Options, Placed
from testbed.experiments.runs.option_values import option_at, with_defaults

MISSING = "???"


def composed_plainly(name: str, words: Sequence[str]) -> DictConfig:
    """The values that Hydra composes from words that choose options that ship, and plug-ins.

    Raises NeedsHydra for options, or words, that only Hydra composes or refuses.
    """
    values: Node = {}
    for part in Options(words, _whole_option).in_order(name):
        merge(values, _at_place(part))
    config = OmegaConf.create(values)
    OmegaConf.set_struct(config, True)
    return config


def _whole_option(path: str) -> Node | None:
    """The values of an option by its path, with the defaults of its class; None: there is none."""
    option = option_at(CONF, path)
    return None if option is None else with_defaults(option, path.partition("/")[0])


def _at_place(part: Placed) -> Node:
    """The values below the keys of their place."""
    values = part.values
    for key in reversed(part.place.split(".") if part.place else []):
        values = {key: values}
    return values


def merge(values: Node, later: Node) -> None:
    """Put later values into the first, as OmegaConf merges them: mappings key by key; a missing
    value changes nothing.
    """
    for key, value in later.items():
        there = values.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            merge(there, value)
        elif _has_rules(there, value):
            raise NeedsHydra
        elif isinstance(value, dict):
            values[key] = {}
            merge(values[key], value)
        elif value != MISSING or key not in values:
            values[key] = value


def _has_rules(there: Any, value: Any) -> bool:
    """True if OmegaConf has rules of its own for this change: a mapping or a list becomes another
    kind, or one stands in place of a value that follows from others.
    """
    if isinstance(there, dict | list):
        return value != MISSING and type(value) is not type(there)
    return isinstance(value, dict | list) and "${" in str(there)
