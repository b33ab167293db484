"""From names, values and objects to a config, as the command line makes one from its words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Any, NamedTuple

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.commands.chosen_classes import check_choice
from experiments.commands.one_line import one_line
from experiments.front_door.own_workload import Own, own_workload
from experiments.runs.build import Setup, build
from experiments.runs.given import KINDS, is_made
from experiments.runs.known_choices import CUSTOM, GROUPS, names_of
from experiments.runs.lab import composed
from experiments.runs.misspelt import check_key
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec

SHORT = {
    "rate": "arrivals.rate",
    "duration_s": "arrivals.duration_s",
    "num_seqs": "workload.num_seqs",
    "beam": "workload.beam",
    "max_len": "workload.max_len",
}
WORDS = {  # groups that the command line names otherwise
    "system": "+system={}",
    "protocol": "+protocol={}",
    "eviction": "eviction@policy.eviction={}",
}
SPECS = (ModelSpec, ServerSpec, GpuSpec)


class Asked(NamedTuple):
    """A config, and the objects that stand in for some of its parts."""

    config: DictConfig
    objects: dict[str, Any]


def made(config: DictConfig, objects: Mapping[str, Any]) -> Setup:
    """What the config and the objects describe; what Hydra says against it is an InputError."""
    try:
        return build(config, objects)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(one_line(error)) from error


def asked(overrides: Sequence[str], options: Mapping[str, Any]) -> Asked:
    """Words of the command line, then options: choices of a group, values by key, objects of the caller's.

    Raises InputError for an option that `testbed run` does not have.
    """
    options = {key: _python(value) for key, value in options.items() if value is not None}
    own = own_workload(options)
    words, values, objects, nodes = list(overrides), dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for key, value in options.items():
        if isinstance(value, str) and (key in GROUPS or key in WORDS):
            words.append(WORDS.get(key, f"{key}={{}}").format(value))
        elif isinstance(value, SPECS):
            nodes["server.gpu" if key == "gpu" else key] = _node(value)
        elif key in KINDS and not isinstance(value, Mapping):
            objects[key] = _object(key, value, own)
            words.append(f"{key}={CUSTOM}")
        else:
            values[SHORT.get(key, key)] = value
    if own.replays:
        words.append("arrivals=replay")
    return Asked(_config(words, values, objects, nodes), objects)


def _object(key: str, value: Any, own: Own) -> Any:
    if key == "trace" and own.workload is not None:
        return own.workload
    if key == "scheduler" and isinstance(value, KINDS[key]):
        raise InputError("scheduler is an object already; give its class, which is made with the policy of the run")
    return value


def _config(
    words: Sequence[str], values: Mapping[str, Any], objects: Mapping[str, Any], nodes: Mapping[str, Any]
) -> DictConfig:
    of_ones_own = {word.partition("=")[0] for word in words if _of_ones_own(word)}
    try:
        for word in words:
            check_choice(word)
        config = composed("run", tuple(words)).copy()
        for group, given in objects.items():
            config[group]["_target_"] = _dotted(given)
            if is_made(given) and isinstance(size := getattr(given, "block_size", None), int):
                OmegaConf.update(config, f"{group}.block_size", size, force_add=True)  # prices may depend on it
        for key, node in nodes.items():
            OmegaConf.update(config, key, node, merge=False)
        for key, value in values.items():
            own = key.partition(".")[0] in of_ones_own
            if not own:
                check_key(key, config, SHORT)
            OmegaConf.update(config, key, value, force_add=own)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(f"{one_line(error)}; options are those of testbed run (testbed run --help)") from error
    return config


def _of_ones_own(word: str) -> bool:
    """Whether a word chooses a class of the user's own, whose parameters no config lists."""
    group, _, choice = word.partition("=")
    return group in KINDS and (choice == CUSTOM or choice not in names_of(group))


def _python(value: Any) -> Any:
    """Numbers of NumPy as Python's own, which is all that a config holds; a tuple is one value, a pair for example."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [_python(item) for item in value]
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


def _node(spec: Any) -> dict[str, Any]:
    """A spec as the part of a config that makes it."""
    assert is_dataclass(spec)
    node = {"_target_": f"{type(spec).__module__}.{type(spec).__qualname__}", **asdict(spec)}  # type: ignore[arg-type]
    if isinstance(spec, ServerSpec):
        node |= {"gpu": _node(spec.gpu), "kv_memory_gib": dict(spec.kv_memory_gib), "num_blocks": None}
    return node


def _dotted(given: Any) -> str:
    """The full name of a class, of a function or of an object's class."""
    while isinstance(given, partial):
        given = given.func
    named = given if hasattr(given, "__qualname__") else type(given)
    return f"{named.__module__}.{named.__qualname__}"
