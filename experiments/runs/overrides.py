"""User words as Hydra's overrides: gpu=NAME, plug-ins by name, and MODULE:CLASS.

An unknown name is refused here, with the nearest known one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.spelling import did_you_mean
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
from testbed.experiments.runs.config_store import register_class
from testbed.experiments.runs.option_files import check_option_file, option_files
from testbed.experiments.vllm_server.release import release_of_preset
from testbed.trusted import CLASS
from testbed.trusted import FLAG as TRUST
from testbed.vllm_pages import pages_of

FOLDER = "--config-dir="
PLAIN = re.compile(r"[\w.-]+")
QUOTES = ("'", '"')
POOL = ("server.num_blocks", "server.kv_memory_gib", "server.workspace_gib")
WITH_COMMAS = ("workload.mix", "faults")  # whose commas are no sweep


def normalize(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra overrides, without the folders of options; registers the plug-ins that
    they name.
    """
    folders = user_folders(arguments)
    words = [word for word in arguments if word != TRUST and not word.startswith(FOLDER)]
    words += hybrid_words(chosen(words))
    given = dict(map(_choice, words))
    result = [word for argument in words for word in _normalized(argument, set(given), folders)]
    options = {key.partition("@")[2] or key: value for key, value in map(_choice, result)}
    for (
        word
    ) in result:  # a class on the command line may not run under the name of another class's option
        node, _, last = _choice(word)[0].rpartition(".")
        group = "eviction" if node == "policy.eviction" else node
        if last == "_target_" and group in GROUPS and options.get(node) != CUSTOM:
            way_out = f"set {'eviction@policy.eviction' if group == 'eviction' else group}={CUSTOM}"
            raise InputError(f"{word}: would run under the name of another {group} ({way_out})")
    if not {"server", "gpu"} & given.keys():
        for name in _names(given.get("model", "")):
            if name not in model_names() and f"{HIDDEN}{name}" not in files_of("server", folders):
                raise InputError(f"model={name}: has no default server (add server=... or gpu=...)")
    search = ", ".join(f"file://{folder.resolve()}" for folder in folders)
    return [*result, f"hydra.searchpath=[{search}]"] if folders else result


def user_folders(arguments: Sequence[str]) -> list[Path]:
    """The folders of options: the arguments --config-dir=DIR."""
    folders = [
        Path(argument.removeprefix(FOLDER)) for argument in arguments if argument.startswith(FOLDER)
    ]
    registered = {
        f"{place}{name}.yaml" for name in model_names() for place in ("model/", f"server/{HIDDEN}")
    }
    registered |= {f"server/{name}.yaml" for name in files_of("gpu")}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"--config-dir {folder}: no such folder")
        for path in option_files(folder):
            place = path.relative_to(folder)
            check_option_file(path, place)
            # Hydra would take it in place of one that ships.
            if (CONF / place).is_file() or place.as_posix() in registered:
                raise InputError(
                    f"--config-dir {folder}: {place} has the name of one that ships; give it "
                    f"another name"
                )
    return folders


def _normalized(argument: str, groups: set[str], folders: Sequence[Path]) -> Iterator[str]:
    key, value = _choice(argument)
    group = key.partition("@")[0]
    if group in GROUPS and value in ("null", ""):
        raise InputError(
            f"{argument}: no {group} selected (`testbed list {group}` shows the options)"
        )
    if (
        value.strip("{ }") == "" and "{" in value
    ):  # Hydra would merge it with what is there, so that nothing changed
        yield f"~{key}"
    elif key.endswith("._target_") and CLASS.fullmatch(value):
        yield argument.replace(":", ".")
    elif key in WITH_COMMAS and "," in value and value[0] not in QUOTES:
        yield argument.replace(f"={value}", f"='{value}'")
    elif key == "gpu":
        _check("gpu", value, folders)
        if "server" not in groups:
            yield f"server={ANY_SERVER}"
        yield f"gpu@server.gpu={value}"
    else:
        if group in GROUPS:
            _check(group, value, folders)
        whole = value.startswith("{") and not argument.startswith(
            "+"
        )  # Hydra lets no key into an empty mapping
        yield f"++{argument}" if whole else argument


def _choice(argument: str) -> tuple[str, str]:
    """Key and value of an override such as policy=paged or +system=vllm; empty where there is
    none.
    """
    key, equals, value = argument.partition("=")
    return (key.lstrip("+"), value) if equals and not argument.startswith(("-", "~")) else ("", "")


def _names(value: str) -> Iterator[str]:
    """The plain names and classes in an override, or in a sweep over several; Hydra parses all
    other forms.
    """
    names = (name.strip() for name in value.split(","))
    return (name for name in names if PLAIN.fullmatch(name) or CLASS.fullmatch(name))


def _check(group: str, value: str, folders: Sequence[Path]) -> None:
    """Raise InputError unless every name is a file, a shipped model, a plug-in or MODULE:CLASS;
    the last two are registered in Hydra.
    """
    names = names_of(group, folders)
    for name in _names(value):
        if CLASS.fullmatch(name):
            register_class(group, name, name)
            continue
        if name in names or name == "null" or name in files_of(group, folders):
            continue
        points = plug_ins_of(group)
        point = next((point for point in points if point.name == name), None)
        if point is None:
            choices = [*names, *(entry.name for entry in points)]
            hint = did_you_mean(name, choices) or f"; choose from {', '.join(choices)}"
            raise InputError(f"no {group}/{name}{hint}")
        register_class(group, name, point.value)


def hybrid_words(given: Mapping[str, str]) -> list[str]:
    """What vLLM's hybrid manager is here, for a model with windows or states under a preset of
    vLLM's; nothing where the words say which policy serves.
    """
    if release_of_preset(given.get("system", "")) is None or "policy" in given:
        return []
    model = given.get("model", "")
    if model not in model_names() or not pages_of(read_model(model), 1, 16).is_grouped:
        return []
    words = ["policy=grouped_caching", "policy.watermark=0"]
    if any(key.startswith(POOL) for key in given):
        return words
    pool = f"${{vllm_server:{given['system']}/pool_gib}}"
    return [*words, "null_blocks=0", f"server.kv_memory_gib={{{model}: {pool}}}"]


def chosen(words: Sequence[str]) -> dict[str, str]:
    """Overrides by key."""
    return {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in words)}
