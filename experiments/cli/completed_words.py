"""Candidates for tab completion that are known only when a word is typed: Hydra's overrides, and
figures. Hydra itself is not imported; the options are read when a word is completed.
"""

from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts.completion._engine import CompletionContext

BREAKS = ("=", "@")  # bash ends a word before and after each of them


def override_words(context: "CompletionContext") -> list[str]:
    """Completions of the last of some overrides: `policy=`, `policy=paged`, `arrivals.rate=`.

    bash sends `policy=pa` as three words, and replaces only the last one; zsh sends one word.
    """
    typed = [token.value for token in context.argument.tokens]
    *words, last = _joined([*typed, context.incomplete])
    candidates = [word for word in candidates_after(words, last) if word.startswith(last)]
    is_split = context.incomplete in BREAKS or bool(typed and typed[-1] in BREAKS)
    if not is_split:
        return candidates
    start = max(last.rfind(character) for character in BREAKS) + 1
    return [word[start:] for word in candidates]


def candidates_after(words: Sequence[str], last: str) -> list[str]:
    """The words that may stand where `last` stands, after other overrides."""
    from testbed.experiments.runs.choice_names import CUSTOM, GROUPS, KEYS, names_of, plug_ins_of

    key, equals, value = last.partition("=")
    if not equals:
        groups = (f"{KEYS.get(group, group)}=" for group in GROUPS)
        return sorted([*groups, *_keys(words)])
    group = key.lstrip("+").partition("@")[0]
    if group not in GROUPS:
        return []
    names = {*names_of(group), *(point.name for point in plug_ins_of(group))} - {CUSTOM}
    before = value[: value.rfind(",") + 1]  # of several values, the last one is completed
    return [f"{key}={before}{name}" for name in sorted(names)]


def log_words(context: "CompletionContext") -> list[str]:
    """Completions of a log's path, or of an override."""
    paths = sorted(Path().glob(f"{escape(context.incomplete)}*"))
    files = [f"{path}/" if path.is_dir() else str(path) for path in paths]
    return [*override_words(context), *files]


def figures(context: "CompletionContext") -> list[str]:
    """The figures that can be reproduced."""
    from testbed.experiments.runs.choice_names import files_of

    return sorted(files_of("figure"))


def groups(context: "CompletionContext") -> tuple[str, ...]:
    """The config groups."""
    from testbed.experiments.runs.choice_names import GROUPS

    return GROUPS


def _joined(words: Iterable[str]) -> list[str]:
    """Words that bash has split at = and @, whole again."""
    joined: list[str] = []
    continues = False
    for word in words:
        if joined and (continues or word in BREAKS):
            joined[-1] += word
        else:
            joined.append(word)
        continues = word in BREAKS
    return joined


def _keys(words: Sequence[str]) -> Iterator[str]:
    """Every key of the configuration, with the groups' options that the words select."""
    import yaml

    from testbed.experiments.runs.choice_names import CONF, GROUPS, files_of, keys_left_out

    run = yaml.safe_load((CONF / "run.yaml").read_text(encoding="utf-8"))
    yield from _key_words(run, "")
    selected: dict[str, str] = {}
    for choice in run["defaults"]:
        if isinstance(choice, dict):
            selected |= {str(group): str(name) for group, name in choice.items()}
    selected |= dict(word.split("=", 1) for word in words if "=" in word)
    files = {group: files_of(group).get(selected.get(group, "")) for group in GROUPS}
    files["server"] = CONF / "memory.yaml"
    for group, path in files.items():
        if path:
            text = path.read_text(encoding="utf-8")
            yield from _key_words(yaml.safe_load(text), f"{group}.")
            yield from (f"{group}.{key}=" for key in keys_left_out(text))


def _key_words(values: dict[str, object], above: str) -> Iterator[str]:
    for key, value in values.items():
        if key in ("defaults", "hydra") or key.startswith("_"):
            continue
        if isinstance(value, dict) and value:
            yield from (f"{above}{key}.{inner}=" for inner in value)
        else:
            yield f"{above}{key}="
