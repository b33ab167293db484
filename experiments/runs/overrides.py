"""Converts user overrides to Hydra's: gpu=NAME, plug-ins by name, MODULE:CLASS, a model without a server.

An unknown name is refused here, with the nearest known one.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import yaml
from hydra.core.config_store import ConfigStore

from testbed.core.errors import InputError
from testbed.core.shapes import model_names
from testbed.core.specs import GIB, ModelSpec
from testbed.experiments.runs.choice_names import (
    ANY_SERVER,
    CONF,
    CUSTOM,
    GROUPS,
    HIDDEN,
    files_of,
    names_of,
    plug_ins_of,
)
from testbed.schema import did_you_mean

FOLDER_FLAGS = ("--config-dir", "-cd")
VALUE_FLAGS = (*FOLDER_FLAGS, "--config-path", "-cp", "--config-name", "-cn", "--package", "-p")
PLAIN = re.compile(r"[\w.-]+")
CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
QUOTES = ("'", '"')
SERVER_SIZES = (1, 2, 4, 8)


def normalize(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra overrides; registers the plug-ins that they name, and prints notes to standard error."""
    folders = user_folders(arguments)
    groups = {key for argument in arguments for key, _ in [_choice(argument)]}
    result = [word for argument in arguments for word in _normalized(argument, groups, folders)]
    _check_targets(result)
    if not {"server", "gpu"} & groups:
        for name in _names(next((value for key, value in map(_choice, arguments) if key == "model"), "")):
            _serve(name, folders)
    return result


def user_folders(arguments: Sequence[str]) -> list[Path]:
    """The folders that --config-dir names."""
    found = []
    for argument, following in pairwise([*arguments, ""]):
        flag, equals, value = argument.partition("=")
        if flag in VALUE_FLAGS and (not equals and (not following or following.startswith("-"))):
            raise InputError(f"{flag}: needs a value (see testbed run --help)")
        if flag in FOLDER_FLAGS:
            found.append(Path(value if equals else following))
    for folder in found:
        if not folder.is_dir():
            raise InputError(f"--config-dir {folder}: no such folder")
        _check_new(folder)
    return found


def _check_new(folder: Path) -> None:
    """No file may have the place of one that ships, which Hydra would take in its stead."""
    for path in sorted(folder.rglob("*.yaml")):
        place = path.relative_to(folder)
        if (CONF / place).is_file() or (place.parent == Path("model") and place.stem in model_names()):
            raise InputError(f"--config-dir {folder}: {place} has the name of one that ships; give it another name")


def _normalized(argument: str, groups: set[str], folders: Sequence[Path]) -> Iterator[str]:
    """One argument as Hydra overrides, with the overrides that it implies."""
    key, value = _choice(argument)
    group = key.partition("@")[0]
    if group in GROUPS and value in ("null", ""):
        raise InputError(f"{argument}: no {group} selected (`testbed list {group}` shows the options)")
    if value.strip("{ }") == "" and "{" in value:  # Hydra would merge it with what is there, so that nothing changed
        yield f"~{key}"
    elif key.endswith("._target_") and CLASS.fullmatch(value):
        yield argument.replace(":", ".")
    elif key == "workload.mix" and "," in value and value[0] not in QUOTES:
        yield argument.replace(f"={value}", f"='{value}'")  # its commas are no sweep
    elif key == "gpu":
        _check("gpu", value, folders)
        if "server" not in groups:
            yield f"server={ANY_SERVER}"
        yield f"gpu@server.gpu={value}"
    elif group in GROUPS and CLASS.fullmatch(value):
        yield f"{key}={CUSTOM}"
        yield f"{key.partition('@')[2] or key}._target_={value.replace(':', '.')}"
    else:
        if group in GROUPS:
            _check(group, value, folders)
        whole = value.startswith("{") and not argument.startswith("+")  # Hydra lets no key into an empty mapping
        yield f"++{argument}" if whole else argument


def _check_targets(words: Sequence[str]) -> None:
    """Raise InputError where a class on the command line would run under the name of another class's option."""
    chosen = {key.partition("@")[2] or key: value for key, value in map(_choice, words)}
    for word in words:
        node, _, last = _choice(word)[0].rpartition(".")
        group = "eviction" if node == "policy.eviction" else node
        if last == "_target_" and group in GROUPS and chosen.get(node) != CUSTOM:
            way_out = f"set {'eviction@policy.eviction' if group == 'eviction' else group}={CUSTOM}"
            raise InputError(f"{word}: would run under the name of another {group} ({way_out})")


def _choice(argument: str) -> tuple[str, str]:
    """Key and value of an override such as policy=paged or +system=vllm; empty where there is none."""
    key, equals, value = argument.partition("=")
    return (key.lstrip("+"), value) if equals and not argument.startswith(("-", "~")) else ("", "")


def _names(value: str) -> Iterator[str]:
    """The plain names in an override, or in a sweep over several; Hydra parses all other forms."""
    return (name.strip() for name in value.split(",") if PLAIN.fullmatch(name.strip()))


def _check(group: str, value: str, folders: Sequence[Path]) -> None:
    """Raise InputError unless every name is a file, a shipped model or a plug-in; plug-ins are registered in Hydra."""
    known = names_of(group, folders)
    for name in _names(value):
        if name in known or name == "null" or name in files_of(group, folders):
            continue
        points = plug_ins_of(group)
        point = next((point for point in points if point.name == name), None)
        if point is None:
            every = [*known, *(one.name for one in points)]
            hint = did_you_mean(name, every) or f"; choose from {', '.join(every)}"
            raise InputError(f"no {group}/{name}{hint}")
        target = point.value.replace(":", ".")
        node = {"defaults": [CUSTOM, "_self_"], "_target_": target}
        ConfigStore.instance().store(name=name, node=node, group=group, provider=f"{point.dist and point.dist.name}")


def _serve(model: str, folders: Sequence[Path]) -> None:
    """Select a default server for a user-supplied model without one, and print a note."""
    name, path = f"{HIDDEN}{model}", files_of("model", folders).get(model)
    if path is None or name in files_of("server", folders):
        return
    num_gpus, sound = _fewest(path)
    node = {"defaults": [ANY_SERVER, "_self_"], "num_gpus": num_gpus}
    ConfigStore.instance().store(name=name, node=node, group="server", provider="testbed")
    if sound:
        print(
            f"testbed: note: {model} has no server (server/{name}.yaml), so it runs on {num_gpus} x "
            f"{ANY_SERVER} (server=... or gpu=... selects another)",
            file=sys.stderr,
        )


def _fewest(path: Path) -> tuple[int, bool]:
    """The fewest GPUs that fit a model and its longest sequence, or the largest number; and whether they fit."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        model = ModelSpec(**{key: value for key, value in values.items() if not key.startswith("_")})
        gpu = yaml.safe_load(files_of("gpu")[ANY_SERVER].read_text(encoding="utf-8"))
        needed = model.weight_bytes + model.max_len * model.kv_bytes_per_token
        usable = 0.95 * gpu["memory_bytes"] - GIB
        return next((size for size in SERVER_SIZES if size * usable > needed), SERVER_SIZES[-1]), True
    except (TypeError, ValueError, AttributeError, yaml.YAMLError):  # reading the model reports the error
        return 1, False
