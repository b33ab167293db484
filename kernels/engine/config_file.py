"""The file of a run's config: what is wrong with it is one line, before anything is made."""

import json
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError

PARTS = ("model", "server", "policy", "scheduler", "preemption")


def read_config(path: Path) -> dict[str, Any]:
    """The values of a config file, which must name every part of a run."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a run's config.yaml") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; give the config.yaml in it") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; give a run's config.yaml") from None
    config = _json(path, text) if path.suffix == ".json" else _yaml(path, text)
    if not isinstance(config, dict):
        raise InputError(f"{path}: not the config of a run, which is a mapping")
    for name in (*PARTS, *(() if config.get("requests") else ("trace", "arrivals"))):
        node = config.get(name)
        if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
            raise InputError(
                f"{path}: {name} is {_short(node)}; it must name its class by _target_, as a run leaves it"
            )
    return config


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from None


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError(f"{path}: reading YAML needs the package PyYAML; give the same values as .json") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML ({' '.join(str(error).split())})") from None


def _short(value: Any) -> str:
    return "missing" if value is None else repr(value)[:40]
