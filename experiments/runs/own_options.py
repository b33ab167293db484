"""Options that no file states, as a config source of Hydra: the constructors' defaults, the shapes
that ship, a server of every GPU, and plug-ins.

A file of experiments/conf begins with `/class/MODULE.CLASS@_here_`, the parameters of that class
with their defaults, and states only what differs. Hydra asks for an option when a configuration has
it, so that a class is imported only if it is used.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from testbed.core.model_files import model_names, shipped
from testbed.experiments.runs.choice_names import (
    ANY_SERVER,
    CLASS,
    CUSTOM,
    GROUPS,
    HIDDEN,
    files_of,
    gpus_of_server,
    plug_ins_of,
)
from testbed.run.config import EngineConfig, RunConfig, ServerConfig, SoftwareConfig, defaults_of
from testbed.run.constructor_parameters import values_of
from testbed.run.parts import locate

Node = dict[str, Any]
PROVIDER = "testbed"
NO_PACKAGE: dict[str, str | None] = {"package": None}  # of its own: it is where a file places it
NOTHING = "None"  # Hydra asks for it if a default is null
CONSTRUCTOR = "class"  # the group of the constructors' defaults
# Of a deployment, whatever the model
CHOICES = {"kv_dtype_bytes": None, "weight_bits": None, "fp8_products": None}
# Values of a run that are options of their own groups
GROUP_VALUES = ("engine", "software", "router", "handover", "speculation")
ABSENT = ("tiers", "kv_memory_of")  # values of a server that a file or an option adds


class OwnOptions(ConfigSource):
    """Answers Hydra's questions for the options of this module, by their paths."""

    @staticmethod
    def scheme() -> str:
        return "testbed"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in (*GROUPS, CONSTRUCTOR, "engine")

    def is_config(self, config_path: str) -> bool:
        return _maker(config_path.removesuffix(".yaml")) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        path = config_path.removesuffix(".yaml")
        make = _maker(path)
        assert make is not None
        return ConfigResult(
            self.provider, f"testbed://{path}", OmegaConf.create(make()), NO_PACKAGE
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        is_of_files = results_filter in (None, ObjectType.CONFIG)
        return sorted(_names(config_path)) if is_of_files else []


class OwnSearchPath(SearchPathPlugin):
    """Lets Hydra look for options here, behind the files that ship."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(PROVIDER, "testbed://")


@cache
def register() -> None:
    """Register both with Hydra, once in a process."""
    Plugins.instance().register(OwnOptions)
    Plugins.instance().register(OwnSearchPath)


def _maker(path: str) -> Callable[[], Node] | None:
    """The function that makes the option of this path; None if it is not one of this module."""
    group, _, name = path.rpartition("/")
    if name == NOTHING:
        return None
    if group == CONSTRUCTOR:
        return lambda: _constructor(name, name)
    if path in VALUES:
        return VALUES[path]
    if group == "model" and name in model_names():
        return lambda: {**CHOICES, **shipped(name)["shape"]}
    if group == "server":
        return _server_maker(name)
    return _plug_in_maker(group, name) if group in GROUPS else None


def _server_maker(name: str) -> Callable[[], Node] | None:
    """A server of a GPU by its name, of several as one, and the server of a model that has no file
    of its own.
    """
    if name in files_of("gpu"):
        return lambda: {"defaults": [{"/gpu@gpu": name}, "/memory@_here_"]}
    gpus = gpus_of_server(name)
    if gpus is not None:
        gpu, num_gpus = gpus
        return lambda: {"defaults": [gpu, "_self_"], "num_gpus": num_gpus}
    if name.startswith(HIDDEN) and name.removeprefix(HIDDEN) in model_names():
        return lambda: {"defaults": [ANY_SERVER]}
    return None


def _plug_in_maker(group: str, name: str) -> Callable[[], Node] | None:
    """An installed plug-in by its name, or MODULE:CLASS; it gets what `custom` has."""
    points = {point.name: point.value for point in plug_ins_of(group)}
    target = name if CLASS.fullmatch(name) else points.get(name)
    if target is None or CUSTOM not in files_of(group):
        return None
    dotted = target.replace(":", ".")
    return lambda: {"defaults": [CUSTOM], **_constructor(dotted, group)}


def _constructor(dotted: str, key: str) -> Node:
    """A class by name, with the plain parameters of its constructor: defaults, or `???`."""
    return {"_target_": dotted, **values_of(locate(dotted, key))}


def _names(group: str) -> set[str]:
    if group == "model":
        return set(model_names())
    if group == "server":
        return set(files_of("gpu"))
    return {point.name for point in plug_ins_of(group)} if group in GROUPS else set()


def _without(values: Node, names: tuple[str, ...]) -> Node:
    return {name: value for name, value in values.items() if name not in names}


VALUES: dict[str, Callable[[], Node]] = {
    "run_values": lambda: _without(defaults_of(RunConfig), GROUP_VALUES),
    "server_values": lambda: _without(defaults_of(ServerConfig), ABSENT),
    "software_values": lambda: defaults_of(SoftwareConfig),
    "engine/gpu": lambda: defaults_of(EngineConfig),
}
