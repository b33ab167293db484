"""What a user writes, as Hydra wants it: gpu=NAME, plug-ins by name, MODULE:CLASS, a model without a server.

A name that is nowhere is refused here, with the name that was perhaps meant.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import yaml
from hydra.core.config_store import ConfigStore

from experiments.runs.known_choices import (
    ANY_SERVER,
    CUSTOM,
    GROUPS,
    HIDDEN,
    did_you_mean,
    files_of,
    names_of,
    plug_ins_of,
)
from testbed.core.errors import InputError
from testbed.core.specs import GIB, ModelSpec

FOLDER_FLAGS = ("--config-dir", "-cd")
VALUE_FLAGS = (*FOLDER_FLAGS, "--config-path", "-cp", "--config-name", "-cn", "--package", "-p")
PLAIN = re.compile(r"[\w.-]+")
CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
SERVER_SIZES = (1, 2, 4, 8)


def understood(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra understands them; what they name is registered, notes go to standard error."""
    folders = own_folders(arguments)
    given = {key for argument in arguments for key, _ in [_choice(argument)]}
    result: list[str] = []
    for argument in arguments:
        key, value = _choice(argument)
        if key.endswith("._target_") and CLASS.fullmatch(value):
            argument = argument.replace(":", ".")
        elif key == "gpu":
            _check("gpu", value, folders)
            result += [] if "server" in given else [f"server={ANY_SERVER}"]
            argument = f"gpu@server.gpu={value}"
        elif key.partition("@")[0] in GROUPS and CLASS.fullmatch(value):
            node = key.partition("@")[2] or key
            result.append(f"{key}={CUSTOM}")
            argument = f"{node}._target_={value.replace(':', '.')}"
        elif key.partition("@")[0] in GROUPS:
            _check(key.partition("@")[0], value, folders)
        result.append(argument)
    if not {"server", "gpu"} & given:
        for name in _names(next((value for key, value in map(_choice, arguments) if key == "model"), "")):
            _serve(name, folders)
    return result


def own_folders(arguments: Sequence[str]) -> list[Path]:
    """The folders that --config-dir names."""
    found = []
    for argument, following in pairwise([*arguments, ""]):
        flag, equals, value = argument.partition("=")
        if flag in VALUE_FLAGS and (not equals and (not following or following.startswith("-"))):
            raise InputError(f"{flag} needs a value; see testbed run --help")
        if flag in FOLDER_FLAGS:
            found.append(Path(value if equals else following))
    for folder in found:
        if not folder.is_dir():
            raise InputError(f"--config-dir {folder}: no such folder")
    return found


def _choice(argument: str) -> tuple[str, str]:
    """Key and value of an override such as policy=paged or +system=vllm; empty where there is none."""
    key, equals, value = argument.partition("=")
    return (key.lstrip("+"), value) if equals and not argument.startswith(("-", "~")) else ("", "")


def _names(value: str) -> Iterator[str]:
    """The plain names of a choice, or of a sweep over several; anything else is left to Hydra."""
    return (name.strip() for name in value.split(",") if PLAIN.fullmatch(name.strip()))


def _check(group: str, value: str, folders: Sequence[Path]) -> None:
    """Every name must be a file, a shipped model or a plug-in; a plug-in is put into Hydra's store."""
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
    """A model of the user's own that has no server gets one, and the user is told."""
    name, path = f"{HIDDEN}{model}", files_of("model", folders).get(model)
    if path is None or name in files_of("server", folders):
        return
    num_gpus, sound = _fewest(path)
    node = {"defaults": [ANY_SERVER, "_self_"], "num_gpus": num_gpus}
    ConfigStore.instance().store(name=name, node=node, group="server", provider="experiments.runs.choices")
    if not sound:
        return
    print(
        f"testbed: note: {model} has no server of its own (server/{name}.yaml), so it runs on {num_gpus} x "
        f"{ANY_SERVER}; server=... or gpu=... chooses another",
        file=sys.stderr,
    )


def _fewest(path: Path) -> tuple[int, bool]:
    """The fewest GPUs that hold a model and its longest sequence, or the most there are; and whether one can say."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        model = ModelSpec(**{key: value for key, value in values.items() if not key.startswith("_")})
        gpu = yaml.safe_load(files_of("gpu")[ANY_SERVER].read_text(encoding="utf-8"))
        needed = model.weight_bytes + model.max_len * model.kv_bytes_per_token
        room = 0.95 * gpu["memory_bytes"] - GIB
        return next((size for size in SERVER_SIZES if size * room > needed), SERVER_SIZES[-1]), True
    except (TypeError, ValueError, AttributeError, yaml.YAMLError):  # Hydra or the class will say what is wrong with it
        return 1, False
