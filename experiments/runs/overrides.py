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
    KEYS,
    files_of,
    names_of,
    plug_ins_of,
)
from testbed.experiments.runs.config_store import register_class
from testbed.experiments.runs.model_naming import name_of
from testbed.experiments.runs.option_files import check_option_file, option_files
from testbed.experiments.runs.own_classes import (
    as_class,
    option_names,
    own_class_nodes,
    sets_parameter,
)
from testbed.experiments.vllm_server.release_words import (
    check_old_words,
    quoted,
    release_chosen,
    software_words,
    words_of_groups,
)
from testbed.run.trusted import CLASS
from testbed.run.trusted import FLAG as TRUST
from testbed.vllm.pages import pages_of

FOLDER = "--config-dir="
GPU_OF_ENGINE = re.compile(r"gpu@(?P<engine>\d+)")  # of a fleet
PUBLISHED = re.compile(r"[\w.-]+/[\w.-]+")  # OWNER/NAME
QUOTES = ("'", '"')
POOL = ("server.num_blocks", "server.kv_memory_gib", "server.workspace_gib")
WITH_MARKS = ("workload.mix", "faults")  # whose commas are no sweep, and whose semicolons no error


def normalize(arguments: Sequence[str]) -> list[str]:
    """The arguments as overrides that Hydra takes.

    Registers the plug-ins that they name. The folders of options become Hydra's search path.
    """
    folders = user_folders(arguments)
    options = [word for word in arguments if word != TRUST and not word.startswith(FOLDER)]
    check_old_words(options)
    words = [quoted(part) for word in options for part in published_models(word, folders)]
    words += [*software_words(chosen(words)), *hybrid_words(chosen(words))]
    selected = dict(map(_choice, words))
    own_classes = own_class_nodes(selected, folders)
    result = list[str]()
    for word in words:
        is_added = sets_parameter(_choice(word)[0], own_classes) and not word.startswith("+")
        result += _normalized(f"++{word}" if is_added else word, set(selected), folders)
    _check_targets(result)
    if not {"server", "gpu"} & selected.keys():
        _check_default_server(selected.get("model", ""), folders)
    if not folders:
        return result
    search = ", ".join(f"file://{folder.resolve()}" for folder in folders)
    return [*result, f"hydra.searchpath=[{search}]"]


def published_models(word: str, folders: Sequence[Path] = ()) -> list[str]:
    """model=OWNER/NAME, a name of Hugging Face, as our model of its shape, with the longest
    sequence and the types that the name says; any other word as it is.
    """
    key, value = _choice(word)
    names = value.split(",")
    if key != "model" or not all(map(PUBLISHED.fullmatch, names)):
        return [word]
    (model, *values), *others = (_published_model(name, folders) for name in names)
    if not others:
        return [model, *values]
    if values or any(more for _, *more in others):
        raise InputError(
            f"{word}: names of a sweep may not say types or lengths of their own (sweep over names "
            "of `testbed list model`, or run each alone)"
        )
    return [",".join([model, *(model.removeprefix("model=") for model, *_ in others)])]


def _published_model(name: str, folders: Sequence[Path]) -> list[str]:
    """The model of a name OWNER/NAME, and what else the name says."""
    names = names_of("model", folders)
    meant = name_of(name, names)
    if meant.model not in names:
        raise InputError(
            f"model={name}: has no shape here{did_you_mean(meant.model, names)} (`testbed list "
            "model` shows those that ship, testbed import model makes one of a config.json)"
        )
    words = [f"model={meant.model}"]
    if meant.max_len is not None:
        words.append(f"model.max_len={meant.max_len}")
    if meant.weight_bits is not None:
        fp8 = "null" if meant.fp8_products is None else "true"
        words += [f"++model.weight_bits={meant.weight_bits:g}", f"++model.fp8_products={fp8}"]
    return words


def _check_targets(words: Sequence[str]) -> None:
    """Raise InputError for a class that would run under the name of another class's option."""
    options = {key.partition("@")[2] or key: value for key, value in map(_choice, words)}
    for word in words:
        key, _ = _choice(word)
        node, _, last = key.rpartition(".")
        group = "eviction" if node == "policy.eviction" else node
        if last == "_target_" and group in GROUPS and options.get(node) != CUSTOM:
            way_out = f"set {'eviction@policy.eviction' if group == 'eviction' else group}={CUSTOM}"
            raise InputError(f"{word}: would run under the name of another {group} ({way_out})")


def _check_default_server(models: str, folders: Sequence[Path]) -> None:
    """Raise InputError for a model without a default server, where no server is selected."""
    for name in option_names(models):
        if name not in model_names() and f"{HIDDEN}{name}" not in files_of("server", folders):
            raise InputError(f"model={name}: has no default server (add server=... or gpu=...)")


def user_folders(arguments: Sequence[str]) -> list[Path]:
    """The folders of options: the arguments --config-dir=DIR.

    Raises InputError for a file with the name of an option that ships, which Hydra would replace.
    """
    folders = [
        Path(argument.removeprefix(FOLDER)) for argument in arguments if argument.startswith(FOLDER)
    ]
    registered = {f"server/{name}.yaml" for name in files_of("gpu")}
    for name in model_names():
        registered |= {f"model/{name}.yaml", f"server/{HIDDEN}{name}.yaml"}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"--config-dir {folder}: no such folder")
        for path in option_files(folder):
            place = path.relative_to(folder)
            check_option_file(path, place)
            if (CONF / place).is_file() or place.as_posix() in registered:
                raise InputError(
                    f"--config-dir {folder}: {place} has the name of one that ships; give it "
                    "another name"
                )
    return folders


def _normalized(argument: str, groups: set[str], folders: Sequence[Path]) -> Iterator[str]:
    """The overrides that stand for one argument; groups: the keys of all arguments."""
    key, value = _choice(argument)
    group = key.partition("@")[0]
    if group == "engine" and value in ("null", ""):
        raise InputError(
            f"{argument}: the simulator serves where no engine is given (leave it out)"
        )
    if group in GROUPS and value in ("null", ""):
        raise InputError(
            f"{argument}: no {group} selected (`testbed list {group}` shows the options)"
        )
    if key in KEYS and not (KEYS[key] == f"+{key}" and argument.startswith("+")):
        raise InputError(f"{argument}: is chosen by {KEYS[key]}={value}")
    if value.strip("{ }") == "" and "{" in value:
        # Merging an empty mapping would change nothing: the key is removed instead.
        yield f"~{key}"
    elif key.endswith("._target_") and CLASS.fullmatch(value):
        yield argument.replace(":", ".")
    elif key in WITH_MARKS and set(",;") & set(value) and value[0] not in QUOTES:
        yield argument.replace(f"={value}", f"='{value}'")
    elif match := GPU_OF_ENGINE.fullmatch(key):
        _check("gpu", value, folders)
        yield from _another_gpu(f"servers.{match['engine']}", value, groups)
    elif key == "order":
        _check("order", value, folders)
        yield f"+order@scheduler.order={value}"
    elif key == "gpu":
        _check("gpu", value, folders)
        if "server" not in groups:
            yield f"server={ANY_SERVER}"
        yield f"gpu@server.gpu={value}"
    else:
        if group in GROUPS:
            _check(group, value, folders)
        # Hydra adds no key to an empty mapping, unless it is forced to.
        is_mapping = value.startswith("{") and not argument.startswith("+")
        yield f"++{argument}" if is_mapping else argument


def _another_gpu(server: str, gpu: str, keys: set[str]) -> Iterator[str]:
    """A server like the first one, but for its GPU; what sizes the pool by the memory is left out
    where the keys of the arguments give the pool.
    """
    yield f"+server@{server}={ANY_SERVER}"
    yield f"gpu@{server}.gpu={gpu}"
    is_sized = f"{server}.num_blocks" in keys
    names = ("num_gpus",) if is_sized else ("num_gpus", "memory_utilization", "workspace_gib")
    yield from (f"{server}.{name}=${{server.{name}}}" for name in names)


def _choice(argument: str) -> tuple[str, str]:
    """Key and value of an override such as policy=paged or +system=vllm; else two empty texts."""
    key, equals, value = argument.partition("=")
    if not equals or argument.startswith(("-", "~")):
        return "", ""
    return key.lstrip("+"), value


def _check(group: str, value: str, folders: Sequence[Path]) -> None:
    """Raise InputError unless every name is an option, a plug-in or MODULE:CLASS of the group.

    Plug-ins and classes are registered as options of Hydra.
    """
    names, given = names_of(group, folders), list(option_names(value))
    if "null" in given and len(given) > 1:
        raise InputError(
            f"{group}={value}: null selects nothing (leave {group} out, in a run of its own)"
        )
    for name in given:
        if CLASS.fullmatch(name):
            if CUSTOM not in names:
                raise InputError(
                    f"{group}={name}: takes no class (`testbed list {group}` shows the options)"
                )
            register_class(group, name, name)
            continue
        if name in names or name == "null" or name in files_of(group, folders):
            continue
        points = plug_ins_of(group)
        point = next((point for point in points if point.name == name), None)
        if point is None:
            choices = [*names, *(entry.name for entry in points)]
            near, listed = did_you_mean(name, choices), f"; choose from {', '.join(choices)}"
            way_out = as_class(name) if CUSTOM in names and not near else ""
            raise InputError(f"no {group}/{name}{near or listed}{way_out}")
        register_class(group, name, point.value)


def hybrid_words(choices: Mapping[str, str]) -> list[str]:
    """What vLLM's hybrid manager is here, for a model with windows or states under vLLM's system;
    nothing where the words say which policy serves.
    """
    if release_chosen(choices) is None or "policy" in choices:
        return []
    model = choices.get("model", "")
    if model not in model_names() or not pages_of(read_model(model), 1, 16).is_grouped:
        return []
    words = words_of_groups(caches=True)
    if any(key.startswith(POOL) for key in choices):
        return words
    return [*words, "null_blocks=0", f"server.kv_memory_gib={{{model}: ${{vllm_server:pool_gib}}}}"]


def chosen(words: Sequence[str]) -> dict[str, str]:
    """The values of overrides by key."""
    values = dict[str, str]()
    for word in words:
        key, _, value = word.partition("=")
        values[key.lstrip("+")] = value
    return values
