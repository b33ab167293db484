"""The options of this project as a config source of Hydra: the YAML files of a folder, and those
that no YAML file states: the shapes that ship, that of a config.json, a server of every GPU, and
plug-ins.

A file names its class by `_target_`, and states only what differs from the defaults of the class's
constructor, which are filled in here. Hydra asks for an option when a configuration has it, so that
a class is imported only if it is used.
"""

import re
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from testbed.core.errors import InputError
from testbed.core.model_files import model_names, shipped
from testbed.experiments.runs.choice_names import (
    ANY_SERVER,
    CUSTOM,
    GROUPS,
    HIDDEN,
    config_in,
    files_of,
    gpus_of_server,
    plug_in_class,
    plug_ins_of,
)
from testbed.experiments.runs.yaml_values import yaml_values
from testbed.run.config import EngineConfig, RunConfig, ServerConfig, SoftwareConfig, defaults_of
from testbed.run.constructor_parameters import parameters_of
from testbed.run.parts import locate

Node = dict[str, Any]
SCHEME = "testbed"
FOLDERS: set[str] = set()
PACKAGE = "@package"  # a comment before all values: where a file places them
HEADER = re.compile(rf"\s*#\s*{PACKAGE}[ \t]+(?P<package>\S+)[ \t]*(\n|$)")
NOTHING = "None"  # Hydra asks for it if a default is null
NAMED = re.compile(r"[\w.]+")  # a class by its name, neither missing nor interpolated
MOST_READERS = 4  # that a refusal names
FIGURE = "figure"  # a group of studies, which are no parts of a run
# Of a deployment, whatever the model
CHOICES = {"kv_dtype_bytes": None, "weight_bits": None, "fp8_products": None}
# The models whose defaults a file or a group leaves out, and the fields that an option adds
MODELS: dict[str, tuple[type, tuple[str, ...]]] = {
    "run": (RunConfig, ("engine", "software", "router", "handover", "speculation")),
    "memory": (ServerConfig, ("tiers", "kv_memory_of")),
    "software": (SoftwareConfig, ()),
    "engine": (EngineConfig, ()),
}


class OwnOptions(ConfigSource):
    """Answers Hydra's questions for a folder of options, by their paths below it."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def available(self) -> bool:
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        return config_path in (*GROUPS, "engine") or Path(self.path, config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return option_at(Path(self.path), config_path.removesuffix(".yaml")) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        path = config_path.removesuffix(".yaml")
        option = option_at(Path(self.path), path)
        assert option is not None
        values = with_defaults(option, path.partition("/")[0])
        header = {"package": values.pop(PACKAGE, None)}
        return ConfigResult(self.provider, f"{SCHEME}://{path}", OmegaConf.create(values), header)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        is_of_files = results_filter in (None, ObjectType.CONFIG)
        files = (path.stem for path in Path(self.path, config_path).glob("*.yaml"))
        return sorted({*_names(config_path), *files}) if is_of_files else []


class OwnSearchPath(SearchPathPlugin):
    """Lets Hydra read the registered folders here."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for element in search_path.get_path():
            if element.path in FOLDERS:
                element.path = f"{SCHEME}://{element.path}"


def register(folder: Path) -> None:
    """Register both with Hydra, for a folder with a primary config. Folders of another program in
    this process stay Hydra's own.
    """
    FOLDERS.add(str(folder))
    Plugins.instance().register(OwnOptions)
    Plugins.instance().register(OwnSearchPath)


def with_defaults(stated: Node, group: str) -> Node:
    """The values of an option with the defaults of the class or the model that they are for."""
    cls, added = MODELS.get(group, (None, ()))
    usual = {} if cls is None else defaults_of(cls)
    values = {name: value for name, value in usual.items() if name not in added}
    return {**values, **(stated if group == FIGURE else _of_classes(stated, group))}


def _of_classes(values: Node, group: str) -> Node:
    """The values with the defaults of the class that they name, and its values likewise."""
    filled = {
        name: _of_classes(value, group) if isinstance(value, dict) else value
        for name, value in values.items()
    }
    target = str(values.get("_target_", ""))
    if not NAMED.fullmatch(target):
        return filled
    return {"_target_": target, **parameters_of(locate(target, group)).plain_defaults, **filled}


@cache
def stated(file: Path, changed_ns: int) -> Node:
    """The values of a file that was changed at this time; its package, if its first comment says
    one, as the value PACKAGE.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(key=file, problem="is no text in UTF-8") from None
    try:
        values = yaml_values(text)
    except yaml.MarkedYAMLError as error:
        place = f"{file}, line {error.problem_mark.line + 1}" if error.problem_mark else file
        raise InputError(key=place, problem=f"is not valid YAML: {error.problem}") from None
    if not isinstance(values, dict):
        raise InputError(key=file, problem="must have values by name")
    header = HEADER.match(text)
    return values | {PACKAGE: header["package"]} if header else values


def readers_of(group: str, name: str) -> list[str]:
    """The options of a group with a value of this name; none if they are many, as of a value that
    most of them have.
    """
    if group not in GROUPS:
        return []
    readers = [
        option
        for option, file in files_of(group).items()
        if name in with_defaults(stated(file, file.stat().st_mtime_ns), group)
    ]
    return readers if len(readers) <= MOST_READERS else []


def option_at(folder: Path, path: str) -> Node | None:
    """The values that the option of a folder states, or one that no file states; None if there is
    none.
    """
    file = folder / f"{path}.yaml"
    if file.is_file():
        return stated(file, file.stat().st_mtime_ns)
    group, _, name = path.partition("/")
    if name == NOTHING:
        return None
    if path == "engine/gpu":
        return {}
    if group == "model":
        is_shipped = name in model_names()
        return {**CHOICES, **shipped(name)["shape"]} if is_shipped else _model_of(config_in(name))
    if group == "server":
        return _server(name)
    return _plug_in(group, name) if group in GROUPS else None


def _model_of(config: Path | None) -> Node | None:
    """The shape in a config.json; None without one."""
    if config is None:
        return None
    from testbed.core.hf_config import model_of  # which few runs need
    from testbed.core.hf_served import check_served

    check_served(config)
    shape = asdict(model_of(config))
    return {**CHOICES, **{key: value for key, value in shape.items() if value is not None}}


def _server(name: str) -> Node | None:
    """A server of a GPU by its name, of several as one, and the server of a model that has no file
    of its own.
    """
    if name in files_of("gpu"):
        return {"defaults": [{"/gpu@gpu": name}, "/memory@_here_"]}
    gpus = gpus_of_server(name)
    if gpus is not None:
        gpu, num_gpus = gpus
        return {"defaults": [gpu, "_self_"], "num_gpus": num_gpus}
    if name.startswith(HIDDEN) and name.removeprefix(HIDDEN) in model_names():
        return {"defaults": [ANY_SERVER]}
    return None


def _plug_in(group: str, name: str) -> Node | None:
    """An installed plug-in by its name, or MODULE:CLASS; it gets what `custom` has."""
    target = plug_in_class(group, name)
    if target is None or CUSTOM not in files_of(group):
        return None
    return {"defaults": [CUSTOM], "_target_": target.replace(":", ".")}


def _names(group: str) -> set[str]:
    if group == "model":
        return set(model_names())
    if group == "server":
        return set(files_of("gpu"))
    return {point.name for point in plug_ins_of(group)} if group in GROUPS else set()
