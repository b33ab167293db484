"""The values of a configuration, each with its meaning: from the models, or from the comment of its
YAML file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from testbed.experiments.runs.overrides import normalize, user_folders

from testbed.experiments.runs.choice_names import CONF, GROUPS, files_of
from testbed.experiments.runs.compose import hydra_config, key_errors_explained, register_models
from testbed.experiments.runs.meanings import meanings

COMMENT = re.compile(r"\s*(?P<key>[\w.]+):[^#]*# (?P<text>.*)")
SHARED = ("efficiencies/h200", "limits", "memory")  # files of keys in several groups
SPEC = "_target_: testbed.core.specs."  # no choice, other than of a cost model
Comments = dict[str, str]


def value_lines(words: Sequence[str]) -> Iterator[str]:
    """The composed configuration as YAML; of several values of a sweep, the first."""
    register_models()
    with key_errors_explained(words):
        config = hydra_config([word.partition(",")[0] for word in normalize(words)], whole=True)
    of_groups = _comments_of_groups(config, user_folders(words))
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    for path, line in _keys_and_lines(OmegaConf.to_yaml(own, resolve=True)):
        if SPEC not in line or path[0] == "cost":
            text = _meaning_of(path, of_groups)
            yield f"{line}  # {text}" if text else line


def _keys_and_lines(text: str) -> Iterator[tuple[list[str], str]]:
    """Each line of a YAML text indented by two, with the keys that lead to it."""
    path = list[str]()
    for line in text.splitlines():
        key = line.partition(":")[0]
        depth = (len(key) - len(key.lstrip())) // 2
        path = [*path[:depth], key.strip()]
        yield path, line


def _meaning_of(path: Sequence[str], of_groups: Mapping[str, Comments]) -> str | None:
    """The meaning of a key: its option's comment, the model's description, or a shared comment."""
    key = path[-1]
    comments = of_groups.get(path[0], {})
    if path[:2] == ["server", "gpu"]:
        comments = {**of_groups["gpu"], **comments}
    return comments.get(key) or meanings().get(".".join(path)) or _shared_comments().get(key)


def _shared_comments() -> Comments:
    comments: Comments = {}
    for name in SHARED:
        comments |= _comments_in(CONF / f"{name}.yaml")
    return comments


def _comments_of_groups(config: DictConfig, folders: Sequence[Path]) -> dict[str, Comments]:
    """The comments in the file of each group's selected option, by key."""
    comments: dict[str, Comments] = {}
    for choice, name in config.hydra.runtime.choices.items():
        group = str(choice).partition("@")[0]
        if group in GROUPS:
            comments[group] = _comments_in_option(group, str(name), folders)
    return comments


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


def _comments_in(path: Path) -> Comments:
    """The comment behind each key of a YAML file."""
    matches = map(COMMENT.match, path.read_text(encoding="utf-8").splitlines())
    return {match["key"]: match["text"] for match in matches if match}
