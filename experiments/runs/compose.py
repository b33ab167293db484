"""Typed configurations from command-line overrides."""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hydra import compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from testbed.core.errors import InputError
from testbed.core.spelling import no_key
from testbed.experiments.runs.choice_names import CONF, GROUPS, files_of
from testbed.experiments.runs.config_store import register_models as register_models
from testbed.experiments.runs.kept_files import choices_of, hydra_session
from testbed.experiments.runs.option_files import check_option_classes, option_files
from testbed.experiments.runs.overrides import normalize, user_folders
from testbed.experiments.runs.progress import one_line
from testbed.experiments.vllm_server import configured as vllm_server
from testbed.run.config import RunConfig, ServerConfig
from testbed.run.parts import Part

NO_SUCH_PART = re.compile(r"Could not override '(?P<key>(?P<group>\w+)@(?P<owner>\w+)\.\w+)'")
vllm_server.register()
ELSEWHERE = ("hydra.run.dir", "hydra.sweep.dir", "hydra/launcher")
MOST_KEPT = 1024  # configurations of a process, some 0.15 MiB each


def configured(overrides: Sequence[str], values: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of `testbed run` with these overrides, then single values by dotted key."""
    config = composed("run", tuple(overrides))
    config = config.copy() if values else config
    for key, value in (values or {}).items():
        check_key(key, config)
        OmegaConf.update(config, key, value)
    return typed_config(config)


def typed_config(config: DictConfig) -> RunConfig:
    """The typed configuration of a composed one, without Hydra's part."""
    typed = RunConfig.from_values(vllm_server.without_read_utilization(config, plain(config)))
    roofline, choices = (typed.cost.parameters.get(name) for name in ("roofline", "choices"))
    if isinstance(roofline, Part) and isinstance(choices, Part):
        _check_roofline(typed, roofline, choices)
        _check_software(typed, choices)
    _check_memory(typed.server, typed.model.name)
    return typed


def _check_memory(server: ServerConfig, model: str) -> None:
    """Raise InputError for another memory of a GPU that ships where the pool is given, so that
    nothing reads it.
    """
    if server.num_blocks is None and model not in server.kv_memory_gib:
        return
    sheet = _memory_of_shipped_gpu(server.gpu.name)
    if sheet is not None and server.gpu.memory_bytes != sheet:
        pool_key = "num_blocks" if server.num_blocks is not None else f"kv_memory_gib.{model}"
        raise InputError(
            f"server.gpu.memory_bytes={server.gpu.memory_bytes}: nothing reads it, for "
            f"server.{pool_key} gives the pool (~server.kv_memory_gib and server.num_blocks=null "
            f"compute it from the memory)"
        )


@cache
def _memory_of_shipped_gpu(name: str) -> int | None:
    """The memory in bytes of a GPU of experiments/conf/gpu; None of another one."""
    if name not in files_of("gpu"):
        return None
    return int(OmegaConf.load(CONF / "gpu" / f"{name}.yaml").memory_bytes)


def _check_roofline(typed: RunConfig, roofline: Part, choices: Part) -> None:
    """Raise InputError for a value of cost.roofline that the run's costs do not read."""
    from testbed.cost.auto import SOFTWARE  # these import NumPy, which --help does not need
    from testbed.cost.profile import ProfileCost
    from testbed.run.machine import make_cost

    for name, value in roofline.parameters.items():
        unread = choices.parameters.get(name), _of_system(typed, name)
        if value in (unread if name in SOFTWARE else (_usual_roofline().get(name),)):
            continue
        key = f"cost.roofline.{name}={value}: nothing reads it, for"
        if name in SOFTWARE:
            raise InputError(
                f"{key} software times are those of cost.choices (set cost.choices.{name})"
            )
        if isinstance(make_cost(typed.cost, typed.model, typed.server), ProfileCost):
            raise InputError(
                f"{key} cost=auto takes a profile here (cost=analytic "
                f"cost.efficiencies.{name}={value})"
            )


def _of_system(typed: RunConfig, name: str) -> Any:
    """What the configured software has where a roofline and choices have this."""
    return getattr(typed.software, "name" if name == "software" else name, None)


def _check_software(typed: RunConfig, choices: Part) -> None:
    """Raise InputError for software times of the user's own where the costs are whole iterations of
    a system, which have its software in them.
    """
    from testbed.cost.sections import SYSTEM
    from testbed.run.machine import cost_of

    usual = _shipped_software(str(choices.parameters.get("software")))
    own = [name for name, value in usual.items() if choices.parameters.get(name) != value]
    if own and SYSTEM in (cost_of(typed).fingerprint or {}):
        raise InputError(
            f"cost.choices.{own[0]}={choices.parameters[own[0]]}: nothing reads it, for the costs "
            "are whole iterations, with their software (leave it out; cost.iterations=null takes "
            "none of another system)"
        )


@cache
def _shipped_software(name: str) -> dict[str, Any]:
    """The times of a software that ships; nothing of another one."""
    path = CONF / "software" / f"{name}.yaml"
    if not path.is_file():
        return {}
    merged = OmegaConf.merge(
        OmegaConf.load(CONF / "software" / "engine.yaml"), OmegaConf.load(path)
    )
    times = OmegaConf.to_container(merged)
    assert isinstance(times, dict)
    return {str(key): value for key, value in times.items() if str(key).startswith("overhead")}


@cache
def _usual_roofline() -> dict[str, Any]:
    """The values of cost.roofline that the default option has."""
    values = OmegaConf.to_container(OmegaConf.load(CONF / "efficiencies" / "h200.yaml"))
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def plain(config: DictConfig) -> dict[str, Any]:
    """The resolved config as plain values, without Hydra's part."""
    own = config
    if "hydra" in config:
        own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        values = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise InputError(f"{error.full_key}: has no value (set {error.full_key}=...)") from error
    except OmegaConfBaseException as error:
        raise _refusal_behind(error) or InputError(f"{error.full_key}: {error.msg}") from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _refusal_behind(error: BaseException | None) -> InputError | None:
    """The refusal of a value from which another one follows; OmegaConf keeps it as the context."""
    while error is not None and not isinstance(error, InputError):
        error = error.__context__
    return error


def composed(name: str, overrides: tuple[str, ...]) -> DictConfig:
    """A composed config.

    Composing is slow, so a config is kept until a file of its --config-dir folders changes, or
    MOST_KEPT others have been asked for.
    """
    folders = [folder.resolve() for folder in user_folders(overrides)]
    files = tuple((path, path.read_bytes()) for folder in folders for path in option_files(folder))
    config = _composed(name, overrides, files)
    check_option_classes(config, overrides, folders)
    return config


@lru_cache(MOST_KEPT)
def _composed(
    name: str, overrides: tuple[str, ...], files: tuple[tuple[Path, bytes], ...]
) -> DictConfig:
    register_models()
    with key_errors_explained(overrides):
        return _from_choices(normalize(overrides), name)


def _from_choices(words: list[str], name: str) -> DictConfig:
    """What Hydra composes from normalized overrides. The chosen options are composed once; the
    values are then set by Hydra's own function. Words for Hydra itself and sweeps are left to it.
    """
    overrides = OverridesParser.create().parse_overrides(words)
    if any(_is_hydras(override) for override in overrides):
        return hydra_config(words, name)
    choices = tuple(str(override.input_line) for override in overrides if _is_choice(override))
    values = [override for override in overrides if not _is_choice(override)]
    config: DictConfig = pickle.loads(_with_choices(name, choices))
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return config


def _is_hydras(override: Override) -> bool:
    """Whether an override concerns Hydra's own part, or is a sweep."""
    return override.is_sweep_override() or override.key_or_group.startswith("hydra")


def _is_choice(override: Override) -> bool:
    """Whether an override selects an option of a group; it sets a value otherwise."""
    key = override.key_or_group
    if isinstance(override.value(), dict):
        return False
    registered = isinstance(ConfigStore.instance().repo.get(key), dict)
    return override.package is not None or "/" in key or registered or (CONF / key).is_dir()


@cache
def _with_choices(name: str, choices: tuple[str, ...]) -> bytes:
    """A configuration, pickled: a copy of it is a sixth of the time of deepcopy."""
    return pickle.dumps(choices_of(name, OverridesParser.create().parse_overrides(list(choices))))


@contextmanager
def key_errors_explained(arguments: Sequence[str]) -> Iterator[None]:
    """Turn an error of composing into an InputError, which suggests a key for an unknown one."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        if isinstance(error, OverrideParseException):
            raise InputError(
                f"{error.override}: is no option (KEY=VALUE; quote a value with brackets or commas)"
            ) from None
        if part := NO_SUCH_PART.match(str(error)):
            key, group, owner = part.groups()
            raise InputError(
                f"{key}: the chosen {owner} has no {group} (choose another {owner}=..., or leave "
                f"{key}=... out)"
            ) from None
        with suppress(HydraException, OmegaConfBaseException):  # the options themselves conflict
            _check_keys(arguments)
        raise InputError(one_line(error)) from error


def _check_keys(arguments: Sequence[str]) -> None:
    """Raise InputError for the first key that the config without these values does not have."""
    words = normalize(arguments)
    choices = (*GROUPS, "engine", "hydra.searchpath")
    values = [
        override
        for override in OverridesParser.create().parse_overrides(words)
        if "/" not in override.key_or_group and override.key_or_group not in choices
    ]
    lines = {value.input_line for value in values}
    base = _from_choices([word for word in words if word not in lines], "run")
    for override in values:
        key = str(override.key_or_group)
        if key.startswith("hydra"):
            if key not in ELSEWHERE:
                raise InputError(no_key(key, ELSEWHERE))
        elif not (override.is_add() or override.is_force_add()):
            check_key(key, base)


def check_key(key: str, config: DictConfig, also: Sequence[str] = ()) -> None:
    """Raise InputError unless the config has the key, with or without a value.

    also: keys that the message may suggest besides those of the config.
    """
    above, _, last = key.rpartition(".")
    node = OmegaConf.select(config, above) if above else config
    if not isinstance(node, DictConfig) or last not in list(node):
        values = OmegaConf.to_container(config)
        raise InputError(no_key(key, [*also, *_keys(values), *GROUPS, *ELSEWHERE]))


def hydra_config(overrides: list[str], name: str = "run", *, whole: bool = False) -> DictConfig:
    """Hydra's composition of normalized overrides; `whole`: with Hydra's own part."""
    with hydra_session():
        return compose(name, overrides=overrides, return_hydra_config=whole)


def _keys(values: Any, above: str = "") -> Iterator[str]:
    """The dotted keys of nested values."""
    for key, value in values.items():
        if not str(key).startswith("_"):
            yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{above}{key}.")
