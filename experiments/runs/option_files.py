"""Checks of a user's option files (`--config-dir`): no foreign classes, no changes of Hydra.

Hydra composes such a file into the configuration. A file from elsewhere, such as one of a model,
could place a class anywhere in it. It could also change Hydra's own part, which loads callbacks and
handlers of logs by name, sets environment variables, and says where files are written.
"""

import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from testbed.core.errors import InputError
from testbed.experiments.runs.choice_names import GROUPS, plug_ins_of
from testbed.run.trusted import FLAG, check_classes

HYDRA = "hydra"
HEADER = re.compile(r"\s*#\s*@(?P<words>.*)")
DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")


def option_files(folder: Path) -> list[Path]:
    """The YAML files in a folder of options and below it, those behind links included."""
    pattern = str(Path(glob.escape(str(folder))) / "**" / "*.yaml")
    return sorted(map(Path, glob.glob(pattern, recursive=True, include_hidden=True)))


def check_option_file(path: Path, place: Path) -> None:
    """Raise InputError for a file that changes Hydra's own part, or includes files elsewhere.

    place: the path below the folder of options. A file that cannot be read is left to Hydra, which
    refuses it where it is used.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException):
        return
    if any(part.startswith(HYDRA) for part in place.parts):
        raise InputError(f"{path}: has a name of Hydra's own (rename it)")
    if any(HYDRA in words for words in _headers(text)):
        raise InputError(f"{path}: @package: changes Hydra itself (name another package)")
    if not isinstance(values, dict):
        return
    if own := next((str(key) for key in values if str(key).startswith(HYDRA)), None):
        raise InputError(f"{path}: {own}: changes Hydra itself (set it on the command line)")
    for entry in _entries(values.get("defaults")):
        if HYDRA in entry or ".." in entry:
            raise InputError(
                f"{path}: defaults: {entry}: changes Hydra itself, or is outside the folder "
                "(remove it)"
            )


def check_option_classes(config: DictConfig, words: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise InputError where a file of these folders has put a foreign class into a config.

    words: the command line; the classes that it names, those of installed plug-ins, and with
    `--trust-plug-ins` all classes are allowed.
    """
    if not folders or FLAG in words:
        return
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != HYDRA])
    try:
        values = OmegaConf.to_container(own, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        raise InputError(f"{error.full_key}: {error.msg}") from error
    named = {name for word in words for name in DOTTED_NAME.findall(word.replace(":", "."))}
    installed = {point.value.replace(":", ".") for group in GROUPS for point in plug_ins_of(group)}
    source = ", ".join(f"--config-dir {folder}" for folder in folders)
    check_classes(values, source, named_by_user={*named, *installed, "???"})


def _headers(text: str) -> Iterator[str]:
    for line in text.splitlines():
        match = HEADER.match(line)
        if match:
            yield match["words"]


def _entries(defaults: Any) -> Iterator[str]:
    """Groups and options in a list of defaults."""
    for entry in defaults if isinstance(defaults, list) else ():
        pairs = entry.items() if isinstance(entry, dict) else ((entry, ""),)
        for group, options in pairs:
            yield str(group)
            yield from map(str, options if isinstance(options, list) else (options,))
