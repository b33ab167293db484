"""The values of a configuration, each with its meaning: from the models, or from the comment of its
YAML file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from testbed.experiments.runs.choice_names import CONF, GROUPS, files_of
from testbed.experiments.runs.compose import composed, composed_by_hydra
from testbed.experiments.runs.meanings import meanings
from testbed.experiments.runs.sweep_words import sweep_points
from testbed.experiments.runs.words import read_words

COMMENT = re.compile(r"\s*(?P<key>[\w.]+):[^#]*# (?P<text>.*)")
OF_DEFAULT = re.compile(r"\s*# (?P<key>[\w.]+): (?P<text>.*)")  # a value of the constructor's
SHARED = ("efficiencies/h200", "limits", "memory")  # files of keys in several groups
SPEC = "_target_: testbed.core.specs."  # no choice, other than of a cost model
Comments = dict[str, str]


def value_lines(words: Sequence[str]) -> Iterator[str]:
    """The composed configuration as YAML; of several values of a sweep, the first."""
    words = sweep_points(words)[0]
    config, read = composed("run", words), read_words(words)
    choices = composed_by_hydra("run", read.choices, read.folders, whole=True).hydra.runtime.choices
    of_groups = _comments_of_groups(choices, read.folders)
    for path, line in _keys_and_lines(OmegaConf.to_yaml(config, resolve=True)):
        if SPEC not in line or path[0] == "cost":
            text = _meaning_of(path, of_groups)
            yield f"{line}  # {text}" if text else line


def job_config(words: Sequence[str], *, resolved: bool) -> str:
    """The text of `--cfg job` of Hydra: the configuration that the words compose, as YAML."""
    return OmegaConf.to_yaml(composed("run", sweep_points(words)[0]), resolve=resolved)


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
        comments |= comments_in(CONF / f"{name}.yaml")
    return comments


def _comments_of_groups(choices: Mapping[str, str], folders: Sequence[Path]) -> dict[str, Comments]:
    """The comments in the file of each group's selected option, by key."""
    comments: dict[str, Comments] = {}
    for choice, name in choices.items():
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
    return comments | comments_in(files[name])


def comments_in(path: Path) -> Comments:
    """The comment behind each key of a YAML file, and those of keys that it leaves out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    matches = (COMMENT.match(line) or OF_DEFAULT.match(line) for line in lines)
    return {match["key"]: match["text"] for match in matches if match}
