"""Typed configurations from words: Hydra composes the chosen options into a plain mapping, the
values are set in it, and `RunConfig` validates it once.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from testbed.core.errors import InputError
from testbed.core.spelling import UnknownKey
from testbed.experiments.runs.choice_names import CONF, GROUPS
from testbed.experiments.runs.error_lines import error_behind, flat
from testbed.experiments.runs.own_options import SCHEME, readers_of, register
from testbed.experiments.runs.unread_values import check_unread
from testbed.experiments.runs.words import OF_HYDRA, Words, read_words
from testbed.run.config import RunConfig
from testbed.run.override_words import key_of

VERSION = "1.3"  # of Hydra's rules of composing
# Parts of Hydra's own configuration that `hydra.main` reads, and nothing here
UNASKED = (
    "job_logging",
    "hydra_logging",
    "hydra_help",
    "help",
    "output",
    "launcher",
    "sweeper",
    "env",
)
MOST_KEPT = 256  # compositions of options, some 14 KiB each

# Most words of a sweep's points are those of the other points
_parsed = lru_cache(MOST_KEPT)(OverridesParser.create().parse_overrides)


def _of_vllm_server(name: str, *, _root_: DictConfig) -> Any:
    """The value of `${vllm_server:NAME}`, which few configurations have."""
    from testbed.experiments.vllm_server.configured import value_of

    return value_of(name, _root_)


OmegaConf.register_new_resolver("vllm_server", _of_vllm_server, replace=True)


def configured(words: Sequence[str], values: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of `testbed run` with these words, then single values by dotted key."""
    config = composed("run", words)
    for key, value in (values or {}).items():
        check_key(key, config)
        OmegaConf.update(config, key, value)
    return typed_config(config, [*words, *(values or {})])


def typed_config(config: DictConfig, words: Sequence[str]) -> RunConfig:
    """The typed configuration of a composed one, whose values follow from each other. words: of the
    user, and keys of values that were set besides.
    """
    OmegaConf.clear_cache(config)  # a value may have been set since another one followed from it
    try:
        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = error.full_key or "the configuration"
        raise InputError(key=key, problem="has no value", remedy=f"set {key}=...") from error
    except OmegaConfBaseException as error:
        key = error.full_key or "the configuration"
        raise error_behind(error, InputError) or InputError(key=key, problem=error.msg) from error
    has_pool = "num_blocks" in (values.get("server") or ())
    if has_pool and OmegaConf.is_interpolation(config.server, "num_blocks"):
        from testbed.experiments.vllm_server.configured import without_read_utilization

        values = without_read_utilization(config, values)
    typed = RunConfig.from_values(values)
    check_unread(typed, words)
    return typed


def composed(name: str, words: Sequence[str]) -> DictConfig:
    """The config of this name with the words, for its caller alone; `--config-name` of the words
    counts more.

    The options are composed by Hydra, once for the same choices in a process; the values are set as
    Hydra sets them.
    """
    read = read_words(words)
    name = read.name or name
    with refusals(words):
        overrides = [override for word in read.values for override in _parsed((word,))]
        try:
            if read.is_of_files:
                config = composed_by_hydra(name, read.choices, read.folders)
            else:
                config = pickle.loads(_kept(name, read.choices))
        except HydraException as error:
            raise _explained(name, read) or error from None
        for override in overrides:
            set_value(config, override)
            OmegaConf.clear_cache(config)  # of values that follow from it, which a merge may read
    return config


def composed_by_hydra(
    name: str, words: Sequence[str], folders: Sequence[Any] = (), *, whole: bool = False
) -> DictConfig:
    """The values that Hydra composes from words in its own grammar. folders: of options besides
    those that ship, and where the primary config may be; whole: with Hydra's own part.
    """
    places = [CONF, *(folder.resolve() for folder in folders)]
    first = next((place for place in places if (place / f"{name}.yaml").is_file()), CONF)
    others = ", ".join(f"{SCHEME}://{place}" for place in places if place != first)
    search = [f"hydra.searchpath=[{others}]"] if others else []
    unasked = [f"hydra/{part}=[]" for part in UNASKED]
    register(first)
    with initialize_config_dir(str(first), job_name="testbed", version_base=VERSION):
        return compose(name, [*words, *search, *unasked], return_hydra_config=whole)


@lru_cache(MOST_KEPT)
def _kept(name: str, choices: Sequence[str]) -> bytes:
    """The composition of these options, pickled: read anew, in an eighth of a copy's time."""
    return pickle.dumps(composed_by_hydra(name, choices))


def set_value(config: DictConfig, override: Override) -> None:
    """Set, add or remove one value, as Hydra does; raises InputError for a key that the config does
    not have.
    """
    key, word = str(override.key_or_group), str(override.input_line)
    if override.is_sweep_override():
        raise InputError(
            key=word,
            problem="has several values",
            remedy="testbed run -m runs each; quote a text with commas",
        )
    if override.is_delete():
        return _delete(config, key)
    is_new = override.is_add() or override.is_force_add()
    value = override.value()
    if override.is_add() and not isinstance(value, dict | list) and _is_given(config, key):
        raise InputError(key=word, problem=f"has a value already ({key}=... changes it)")
    if not is_new:
        check_key(key, config)
    OmegaConf.update(config, key, value, merge=True, force_add=is_new)


def _is_given(config: DictConfig, key: str) -> bool:
    """True if a key has a value; one that follows from others is not computed."""
    above, _, last = key.rpartition(".")
    node = OmegaConf.select(config, above) if above else config
    if (
        not isinstance(node, DictConfig)
        or last not in list(node)
        or OmegaConf.is_missing(node, last)
    ):
        return False
    return OmegaConf.is_interpolation(node, last) or node[last] is not None


def _delete(config: DictConfig, key: str) -> None:
    check_key(key, config)
    above, _, last = key.rpartition(".")
    node = OmegaConf.select(config, above) if above else config
    with open_dict(config):
        del node[last]


@contextmanager
def refusals(words: Sequence[str]) -> Iterator[None]:
    """Turn an error of Hydra or OmegaConf into an InputError."""
    try:
        yield
    except OverrideParseException as error:
        raise InputError(
            key=error.override, problem="is no option", remedy=_way_to_write(error.override)
        ) from None
    except MissingConfigException as error:
        listed = ", ".join(error.options or ())
        raise InputError(
            key=error.missing_cfg_file or "--config-name",
            problem="is in no folder of configurations",
            remedy=f"choose from {listed}" if listed else "",
        ) from None
    except (HydraException, OmegaConfBaseException) as error:
        kind = type(error).__name__
        refusal = error_behind(error, InputError) or InputError(key=kind, problem=flat(str(error)))
        raise refusal from error


def _way_to_write(word: str) -> str:
    """The remedy for a word that is no override, which may be a server's command."""
    systems = [name for name in ("vllm", "sglang") if name in word.partition(" --")[0]]
    if " " in word and systems:
        option = f'--from-{systems[0]} "..."'
        return f"a server's command is the value of an option, {option}, or the first word of fits"
    return "KEY=VALUE; quote a value with brackets or commas"


def _explained(name: str, read: Words) -> InputError | None:
    """The refusal of an option of a part that the chosen options do not have, such as an eviction
    order of a policy without a cache.
    """
    placed = [word for word in read.choices if "@" in word and not word.startswith("+")]
    others = [word for word in read.choices if word not in placed]
    try:
        config = composed_by_hydra(name, others, read.folders, whole=True)
    except HydraException:
        return None
    for key in map(key_of, placed):
        group, _, place = key.partition("@")
        owner = place.partition(".")[0]
        if key not in config.hydra.runtime.choices:
            return InputError(
                key=key,
                problem=f"the chosen {owner} has no {group}",
                remedy=f"choose another {owner}=..., or leave {key}=... out",
            )
    return None


def check_key(key: str, config: DictConfig, also: Sequence[str] = ()) -> None:
    """Raise InputError unless the config has the key, with or without a value.

    also: keys that the message may suggest besides those of the config.
    """
    above, _, last = key.rpartition(".")
    node = OmegaConf.select(config, above) if above else config
    if node is None and above in GROUPS:
        raise InputError(
            key=key,
            problem=f"nothing reads it, for {above} is null",
            remedy=f"choose {above}=NAME; testbed list {above} has the names",
        )
    if not isinstance(node, DictConfig) or last not in list(node):
        if readers := readers_of(above, last):
            raise InputError(
                key=key,
                problem=f"nothing reads it, for the chosen {above} has none",
                remedy=f"{' or '.join(f'{above}={name}' for name in readers)} reads it",
            )
        values = OmegaConf.to_container(config)
        raise UnknownKey(key, [*also, *_keys(values), *GROUPS, *OF_HYDRA])


def _keys(values: Any, above: str = "") -> Iterator[str]:
    """The dotted keys of nested values."""
    for key, value in values.items():
        if not str(key).startswith("_"):
            yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{above}{key}.")
