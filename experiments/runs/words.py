"""The words of a command line as typed choices and values: what Hydra's grammar cannot say is read
here, once, and becomes words of Hydra's.

A `Choice` selects an option of a group: policy=paged, policy=MODULE:CLASS, gpu@3=l40s. A `Value`
sets a key, in Hydra's grammar: arrivals.rate=2, ~server.kv_memory_gib. An unknown option is refused
with the nearest known one.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.core.model_files import did_you_mean_model, model_names
from testbed.core.spelling import UnknownKey, did_you_mean
from testbed.experiments.runs.choice_names import (
    ANY_SERVER,
    CLASS,
    CONF,
    CUSTOM,
    GROUPS,
    HIDDEN,
    KEYS,
    config_in,
    files_of,
    is_named,
    names_of,
    plug_ins_of,
)
from testbed.experiments.vllm_server.release_words import SYSTEM, quoted, words_of_system
from testbed.run.override_words import key_of

FOLDER = "--config-dir="
NAME = "--config-name="  # of the primary config, run by default
OF_OPTIONS = (FOLDER, NAME)
PUBLISHED = re.compile(r"[\w.-]+/[\w.-]+")  # OWNER/NAME
NONE = ("null", "")
ORDER = "scheduler.order"  # where an order of service is
QUOTES = ("'", '"')
WITH_MARKS = ("workload.mix", "faults")  # whose commas are no sweep, and whose semicolons no error
LAUNCHER = "hydra/launcher"
OF_HYDRA = ("hydra.run.dir", "hydra.sweep.dir", LAUNCHER)
GPU_ENGINE = "gpu"
ENGINE = "engine"  # a group that is not listed: gpu or nothing


class Choice(NamedTuple):
    """An option of a group. word: as Hydra reads it; key: with its signs; at: the place of the
    option, if it is not that of the group.
    """

    word: str
    key: str
    group: str
    at: str
    name: str

    @property
    def node(self) -> str:
        """The place of the option's values."""
        return ORDER if self.group == "order" else self.at or self.group

    def checked(self, folders: Sequence[Path]) -> "Choice":
        """This choice; raises InputError for an option that the group does not have."""
        if self.group == ENGINE and self.name in NONE:
            raise InputError(
                key=self.word,
                problem="the simulator serves if no engine is given",
                remedy="leave it out",
            )
        if self.group == ENGINE and self.name != GPU_ENGINE:
            raise InputError(
                key=self.word,
                problem="is no engine",
                remedy=f"engine={GPU_ENGINE}; engine.device=cpu computes on a CPU",
            )
        if self.group not in GROUPS:
            return self
        usual = KEYS.get(self.group, self.group)
        if usual != self.group and not self.at and self.key != usual:
            raise InputError(key=self.word, problem=f"is chosen by {usual}={self.name}")
        if self.name in NONE:
            raise InputError(
                key=self.word,
                problem="selects nothing",
                remedy=f"leave {self.group} out; `testbed list {self.group}` shows the options",
            )
        if not is_named(self.group, self.name, folders):
            _check_class(self.group, self.name, folders)
        return self

    def words(self, keys: Sequence[str]) -> list[str]:
        """The choice as words of Hydra's; keys: those of all words."""
        if self.group == "order" and not self.at:
            return [f"+order@{ORDER}={self.name}"]
        if self.group != "gpu" or self.at.startswith(("server", "cost")):
            return [self.word]
        if not self.at:
            server = [] if "server" in keys else [f"server={ANY_SERVER}"]
            return [*server, f"gpu@server.gpu={self.name}"]
        return _another_server(f"servers.{self.at}", self.name, keys)


class Value(NamedTuple):
    """One value by its key, without signs; word: in Hydra's grammar."""

    key: str
    word: str


class Words(NamedTuple):
    """A command line. choices, values: words of Hydra's; folders: of the user's options; name: of
    the primary config, if the words say one; is_of_files: options are in the user's files, which
    may change.
    """

    choices: tuple[str, ...]
    values: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    name: str | None = None
    is_of_files: bool = False


def read_words(arguments: Sequence[str]) -> Words:
    """The choices and values of the words, checked; `--config-dir=DIR` and `--config-name=NAME` are
    words too.
    """
    folders = tuple(user_folders(arguments))
    plain = [word for word in arguments if not (word.startswith(OF_OPTIONS) or is_of_hydra(word))]
    names = [word.removeprefix(NAME) for word in arguments if word.startswith(NAME)]
    texts = [quoted(part) for word in plain for part in published_models(word, folders)]
    by_key = chosen(texts)
    if by_key.get("system") == SYSTEM:
        texts += words_of_system(by_key, folders)
    keys = [*by_key]
    parsed = [_parsed(text) for text in texts]
    choices = [word.checked(folders) for word in parsed if isinstance(word, Choice)]
    _check_targets(choices, [word for word in parsed if isinstance(word, Value)])
    if "model" in by_key and not {"server", "gpu"} & {choice.key for choice in choices}:
        _check_default_server(by_key["model"], folders)
    own = {  # the places of the user's classes: MODULE:CLASS, a plug-in, or `custom`
        choice.node
        for choice in choices
        if choice.group in GROUPS
        and (choice.name == CUSTOM or not is_named(choice.group, choice.name, folders))
    }
    hydra_words = [word for choice in choices for word in choice.words(keys)]
    added = [word for word in hydra_words if not is_choice(key_of(word))]
    values = [_with_marks(word, own) for word in parsed if isinstance(word, Value)]
    return Words(
        tuple(word for word in hydra_words if word not in added),
        (*added, *values),
        folders,
        names[-1] if names else None,
        is_of_files=bool(folders) or ("model" in by_key and config_in(by_key["model"]) is not None),
    )


def check_options(words: Sequence[str]) -> None:
    """Raise InputError for a word that chooses an option which its group does not have."""
    folders = user_folders(words)
    for word in words:
        for choice in map(_parsed, published_models(word, folders)):
            if isinstance(choice, Choice):
                choice.checked(folders)


def is_of_hydra(word: str) -> bool:
    """True if a word is about where runs go, not about the configuration: hydra.run.dir=DIR,
    hydra/launcher=NAME. Raises InputError for another word of Hydra's own part.
    """
    key = key_of(word)
    if not key.startswith(("hydra.", "hydra/")):
        return False
    if key == "hydra.mode":
        raise InputError(key=word, problem="is not read", remedy="-m makes a sweep")
    if key not in OF_HYDRA and not key.startswith("hydra.launcher."):
        raise UnknownKey(key, OF_HYDRA)
    return True


def is_choice(key: str) -> bool:
    """True if a key is that of a group."""
    group = key.partition("@")[0]
    return group in (*GROUPS, ENGINE) or "@" in key or "/" in key or (CONF / group).is_dir()


def chosen(words: Sequence[str]) -> dict[str, str]:
    """The values of overrides by key."""
    values = dict[str, str]()
    for word in words:
        key, _, value = word.partition("=")
        values[key.lstrip("+")] = value
    return values


def user_folders(arguments: Sequence[str]) -> list[Path]:
    """The folders of options: the arguments --config-dir=DIR.

    Raises InputError for a file with the name of an option that ships, which it would not replace.
    """
    folders = [
        Path(argument.removeprefix(FOLDER)) for argument in arguments if argument.startswith(FOLDER)
    ]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(key="--config-dir", value=folder, problem="no such folder")
        for group in GROUPS:
            taken = set(names_of(group)) & {path.stem for path in (folder / group).glob("*.yaml")}
            if taken:
                raise InputError(
                    key="--config-dir",
                    value=folder,
                    problem=f"{group}/{min(taken)}.yaml has the name of one that ships",
                    remedy="give it another name",
                )
    return folders


def _parsed(text: str) -> Choice | Value:
    """A word as a choice or a value."""
    key, equals, name = text.partition("=")
    is_mapping = name.startswith("{")
    if text.startswith(("~", "-")) or not equals or is_mapping or not is_choice(key.lstrip("+")):
        return Value(key_of(text), text)
    group, _, at = key.lstrip("+").partition("@")
    return Choice(text, key, group, at, name)


def _with_marks(value: Value, own: set[str]) -> str:
    """The value as Hydra's word: quoted if commas are no sweep, added if the key may be new,
    and taken out if it becomes an empty mapping, which merging would not change.
    """
    word, text = value.word, value.word.partition("=")[2]
    if text.strip("{ }") == "" and "{" in text:
        return f"~{value.key}"
    if value.key.endswith("._target_") and CLASS.fullmatch(text):
        word = word.replace(":", ".")
    if value.key in WITH_MARKS and set(",;") & set(text) and text[0] not in QUOTES:
        word = word.replace(f"={text}", f"='{text}'")
    if value.key.rpartition(".")[0] in own and not word.startswith("~"):
        return f"++{word.lstrip('+')}"
    return f"++{word}" if text.startswith("{") and word[0] not in "+~" else word


def published_models(word: str, folders: Sequence[Path] = ()) -> list[str]:
    """model=OWNER/NAME, a name of Hugging Face, as our model of its shape, with the longest
    sequence and the types that the name says; a folder's config.json and any other word as it is.
    """
    key, _, name = word.partition("=")
    if key.lstrip("+") != "model" or not PUBLISHED.fullmatch(name) or config_in(name):
        return [word]
    from testbed.experiments.runs.model_naming import name_of  # our names are read without it

    names = names_of("model", folders)
    meant = name_of(name, names)
    if meant.model not in names:
        raise InputError(
            key="model",
            value=name,
            problem=f"has no shape here{did_you_mean_model(meant.model, names)}",
            remedy=(
                "`testbed list model` shows those that ship; a folder with a config.json is "
                "model=./FOLDER"
            ),
        )
    words = [f"model={meant.model}"]
    if meant.max_len is not None:
        words.append(f"model.max_len={meant.max_len}")
    if meant.weight_bits is not None:
        fp8 = "null" if meant.fp8_products is None else "true"
        words += [f"++model.weight_bits={meant.weight_bits:.17g}", f"++model.fp8_products={fp8}"]
    return words


def _another_server(server: str, gpu: str, keys: Sequence[str]) -> list[str]:
    """A server like the first one, but for its GPU; what sizes the pool by the memory is left out
    if the words give the pool.
    """
    is_sized = f"{server}.num_blocks" in keys
    names = ("num_gpus",) if is_sized else ("num_gpus", "memory_utilization", "workspace_gib")
    return [
        f"+server@{server}={ANY_SERVER}",
        f"gpu@{server}.gpu={gpu}",
        *(f"{server}.{name}=${{server.{name}}}" for name in names),
    ]


def _check_class(group: str, name: str, folders: Sequence[Path]) -> None:
    """Raise InputError unless the name is a plug-in or MODULE:CLASS of the group."""
    names = names_of(group, folders)
    if CLASS.fullmatch(name):
        if CUSTOM not in names:
            raise InputError(
                key=group,
                value=name,
                problem="takes no class",
                remedy=f"`testbed list {group}` shows the options",
            )
        return
    plug_ins = [point.name for point in plug_ins_of(group)]
    if name in plug_ins or name in files_of(group, folders):
        return
    choices = [*names, *plug_ins]
    near = did_you_mean(name, choices)
    remedy = "" if near else f"choose from {', '.join(choices)}{_as_class(name, names)}"
    raise InputError(key=group, value=name, problem=f"is no option{near}", remedy=remedy)


def _as_class(name: str, names: Sequence[str]) -> str:
    """The word for a class in a group that takes one, behind the options that an unknown
    name might have meant.
    """
    module, _, last = name.rpartition(".")
    written = f"; a class is written MODULE:CLASS, such as {module or 'my_module'}:{last}"
    return written if CUSTOM in names else ""


def _check_targets(choices: Sequence[Choice], values: Sequence[Value]) -> None:
    """Raise InputError for a class that would run under the name of another class's option."""
    custom = {choice.node for choice in choices if choice.name == CUSTOM}
    for word in values:
        node, _, last = word.key.rpartition(".")
        group = node.rpartition(".")[2]
        if last == "_target_" and group in GROUPS and node not in custom:
            raise InputError(
                key=word.word,
                problem=f"would run under the name of another {group}",
                remedy=f"set {KEYS.get(group, group)}={CUSTOM}",
            )


def _check_default_server(model: str, folders: Sequence[Path]) -> None:
    """Raise InputError for a model without a default server, if no server is selected."""
    if model not in model_names() and f"{HIDDEN}{model}" not in files_of("server", folders):
        raise InputError(
            key="model",
            value=model,
            problem="has no default server",
            remedy="add server=... or gpu=...",
        )
