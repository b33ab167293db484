"""The values of a configuration, each with the comment from its YAML file: unit or meaning."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from testbed.experiments.runs.choice_names import CONF, GROUPS, files_of
from testbed.experiments.runs.compose import hydra_config, key_errors_explained, register_models
from testbed.experiments.runs.overrides import normalize, user_folders

COMMENT = re.compile(r"\s*(?P<key>[\w.]+):[^#]*# (?P<text>.*)")
SHARED = ("efficiencies/h200", "limits", "memory", "run")  # files of keys in several groups
SPEC = "_target_: testbed.core.specs."  # no choice, other than of a cost model
Comments = dict[str, str]


def value_lines(words: Sequence[str]) -> Iterator[str]:
    """The composed configuration as YAML; of several values of a sweep, the first."""
    register_models()
    with key_errors_explained(words):
        config = hydra_config([word.partition(",")[0] for word in normalize(words)], whole=True)
    of_groups = _comments_of_groups(config, user_folders(words))
    shared: Comments = {}
    for name in SHARED:
        shared |= _comments_in(CONF / f"{name}.yaml")
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    group = ""
    for line in OmegaConf.to_yaml(own).splitlines():
        key = line.partition(":")[0]
        if not line.startswith(" "):
            group = key
        if SPEC not in line or group == "cost":
            text = _comment_on(key.strip(), group, of_groups, shared)
            yield f"{line}  # {text}" if text else line


def _comments_of_groups(config: DictConfig, folders: Sequence[Path]) -> dict[str, Comments]:
    """The comments in the file of each group's selected option, by key."""
    comments: dict[str, Comments] = {}
    for choice, name in config.hydra.runtime.choices.items():
        group = str(choice).partition("@")[0]
        if group in GROUPS:
            comments[group] = _comments_in_option(group, str(name), folders)
    if "num_gpus" in comments["server"]:
        comments["gpu"]["num_gpus"] = comments["server"]["num_gpus"]
    return comments


def _comment_on(
    key: str, group: str, of_groups: Mapping[str, Comments], shared: Comments
) -> str | None:
    """The comment on a key below a group."""
    if group == "server" and key in of_groups["gpu"] and key not in of_groups["server"]:
        return of_groups["gpu"][key]
    if key in of_groups.get(group, {}):
        return of_groups[group][key]
    if group == "model":  # its max_len is not the workload's
        return None
    return shared.get(key)


def _comments_in_option(group: str, name: str, folders: Sequence[Path]) -> Comments:
    """The comments in an option's file, and in the files that its defaults name."""
    files = files_of(group, folders)
    comments: Comments = {}
    if name not in files:
        return comments
    for line in files[name].read_text(encoding="utf-8").splitlines():
        base = line[4:].strip()
        if line.startswith("  - ") and base in files:
            comments |= _comments_in_option(group, base, folders)
    return comments | _comments_in(files[name])


def _comments_in(path: Path) -> dict[str, Any]:
    """The comment behind each key of a YAML file."""
    matches = map(COMMENT.match, path.read_text(encoding="utf-8").splitlines())
    return {match["key"]: match["text"] for match in matches if match}
