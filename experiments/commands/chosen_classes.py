"""Whether a run is of the class that its name says."""

from collections.abc import Mapping
from typing import Any

from experiments.runs.known_choices import CONF, CUSTOM, GROUPS
from testbed.core.errors import InputError


def check_choice(argument: str) -> None:
    """A group must have a choice."""
    group, _, choice = argument.partition("=")
    if choice in ("null", "") and group in GROUPS:
        raise InputError(f"{argument} leaves the run without a {group}; testbed list {group} shows the choices")


def check_targets(job: Any) -> None:
    """A class named on the command line must not run under the name of a choice that stands for another class."""
    for override in job.overrides.task:
        key, _, target = str(override).lstrip("+").partition("=")
        node, _, last = key.rpartition(".")
        if last == "_target_":
            _check(key, target, _chosen_for(node, job.runtime.choices))


def _check(key: str, target: str, chosen: tuple[str, str] | None) -> None:
    if chosen is None or chosen[1] == CUSTOM:
        return
    group, choice = chosen
    has_custom = (CONF / group.partition("@")[0] / f"{CUSTOM}.yaml").is_file()
    way_out = f"say {group}={CUSTOM}" if has_custom else "keep it in a YAML file of your own (--config-dir)"
    raise InputError(f"{key}={target} would run under the name of {group}={choice}; {way_out}")


def _chosen_for(node: str, choices: Mapping[str, Any]) -> tuple[str, str] | None:
    """The group whose choice fills this node, and the choice."""
    for group, choice in choices.items():
        name, _, package = str(group).partition("@")
        if choice is not None and node == (package or name.replace("/", ".")):
            return str(group), str(choice)
    return None
