"""The values of a configuration, each with the comment from its YAML file: unit or meaning."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from testbed.experiments.runs.choice_names import CONF, GROUPS, files_of
from testbed.experiments.runs.compose import hydra_config, key_errors_explained, register_models
from testbed.experiments.runs.overrides import normalize, user_folders

COMMENT = re.compile(r"\s*(?P<key>[\w.]+):[^#]*# (?P<text>.*)")


def value_lines(words: Sequence[str]) -> Iterator[str]:
    """The composed configuration as YAML; of several values of a sweep, the first."""
    folders = user_folders(words)
    register_models()
    with key_errors_explained(words):
        config = hydra_config([word.partition(",")[0] for word in normalize(words)], whole=True)
    choices = {
        str(group).partition("@")[0]: str(name)
        for group, name in config.hydra.runtime.choices.items()
    }
    comments = {
        group: dict(_comments(group, name, folders))
        for group, name in choices.items()
        if group in GROUPS
    }
    comments["gpu"] |= {key: text for key, text in comments["server"].items() if key == "num_gpus"}
    files = ("efficiencies/h200", "limits", "memory", "run")
    shared = {key: text for name in files for key, text in _lines(CONF / f"{name}.yaml")}
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    for line in OmegaConf.to_yaml(own).splitlines():
        key = line.partition(":")[0]
        if not line.startswith(" "):
            group = key
        within = comments.get("gpu" if group == "server" else group, {}) | comments.get(group, {})
        text = within.get(key.strip()) or (
            group != "model" and shared.get(key.strip())
        )  # max_len is a workload's too
        if (
            "_target_: testbed.core.specs." not in line or group == "cost"
        ):  # elsewhere it is no choice
            yield f"{line}  # {text}" if text else line


def _comments(group: str, name: str, folders: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    path = files_of(group, folders).get(name)
    if path is not None:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("  - ") and line[4:].strip() in files_of(group, folders):
                yield from _comments(group, line[4:].strip(), folders)
        yield from _lines(path)


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    found = map(COMMENT.match, path.read_text(encoding="utf-8").splitlines())
    yield from ((match["key"], match["text"]) for match in found if match)
