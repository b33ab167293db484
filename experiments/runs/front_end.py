"""The Hydra front end of `testbed.front_end`: builds a configuration from names, values and
objects.
"""

import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.experiments.runs.choice_names import CLASS, CUSTOM, GROUPS, KEYS, names_of
from testbed.experiments.runs.compose import check_key, composed, typed_config
from testbed.experiments.runs.error_lines import flat
from testbed.experiments.runs.notes import OnNote, no_note, print_note, print_notes
from testbed.experiments.runs.one_source import (
    COST,
    OF_ONE_SOURCE,
    OF_THE_LOAD,
    WHY,
    configs_differ,
    group_of,
)
from testbed.experiments.runs.run_folder import run_into
from testbed.experiments.runs.taken_values import BLOCK_SIZE, policy_takes
from testbed.experiments.runs.user_workload import TIMES, TIMING, user_trace
from testbed.memory.policy import MemoryPolicy
from testbed.run.build_checks import KINDS
from testbed.run.config import RunConfig
from testbed.run.override_words import displaced_words, key_of, words_that_count
from testbed.run.parts import Part, locate
from testbed.run.result import Views
from testbed.study.scores import Score

SHORT = {
    "rate": "arrivals.rate",
    "duration_s": "arrivals.duration_s",
    "num_seqs": "workload.num_seqs",
    "beam": "workload.beam",
    "mix": "workload.mix",
    "max_len": "workload.max_len",
}
POOL = (  # other keys that set the size of a pool
    "null_blocks",
    "swap_space_gib",
    "server.num_blocks",
    "server.kv_memory_gib",
    "server.memory_utilization",
    "server.workspace_gib",
)
OWNERS = {  # of groups whose option is a parameter of another part
    "eviction": "policy",
    "store": "policy",
    "load": "policy",
    "order": "scheduler",
    "acceptance": "speculation",
}
TRANSLATIONS = {  # modules of many more, which few runs need
    "from_vllm": "testbed.experiments.vllm_server.translation",
    "from_sglang": "testbed.experiments.sglang_server.translation",
}
SPECS = (ModelSpec, ServerSpec, GpuSpec)


@dataclass
class Requested:
    """A run as the caller describes it.

    words: of the command line. values: by key. parts: policy, scheduler and so on as classes or
    objects, by group. inner_parts: the same for parameters of parts, which have OWNERS. specs: of
    model, server and GPU, by key.
    """

    words: list[str]
    values: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    inner_parts: dict[str, Part] = field(default_factory=dict)
    specs: dict[str, Any] = field(default_factory=dict)

    def add(self, key: str, value: Any) -> None:
        """Add one option: the name of an option, a spec, a class or object, or a value."""
        if isinstance(value, str) and key in GROUPS:
            self.words.append(f"{KEYS.get(key, key)}={value}")
        elif key == "release":  # a word: other values follow from it
            self.words.append(f"{key}={value}")
        elif isinstance(value, SPECS):
            blocks = {"num_blocks": None} if isinstance(value, ServerSpec) else {}
            self.specs["server.gpu" if key == "gpu" else key] = asdict(value) | blocks
        elif key in (*KINDS, *OWNERS) and not isinstance(value, Mapping):
            (self.parts if key in KINDS else self.inner_parts)[key] = _part(value)
            self.words.append(f"{KEYS.get(key, key)}={_option_of(key, value)}")
        else:
            self.values[SHORT.get(key, key)] = value

    @property
    def user_groups(self) -> set[str]:
        """The groups with a class of the user's, whose parameters may have any name."""
        groups = set[str]()
        for word in self.words:
            group, equals, choice = word.partition("=")
            if group in KINDS and equals and (choice == CUSTOM or choice not in names_of(group)):
                groups.add(group)
        return groups


class HydraFrontEnd:
    """The front end of this package: composes configs with Hydra and stores runs in folders."""

    def configure(
        self,
        overrides: Sequence[str],
        options: Mapping[str, Any],
        on_note: OnNote = print_note,
    ) -> RunConfig:
        """The config of command-line overrides and, after them, options by name or key.

        Raises InputError for an option that `testbed run` does not have.
        """
        options = {key: _python(value) for key, value in options.items() if value is not None}
        overrides = _with_server_command(overrides, options, on_note)
        trace = user_trace(options, overrides)
        if trace is not None:
            options["trace"] = trace
        if isinstance(options.get("policy"), MemoryPolicy):
            _check_no_pool(overrides, options)
        requested = Requested(list(overrides))
        for key, value in options.items():
            requested.add(key, value)
        if TIMES in getattr(trace, "columns", ()) and not any(name in options for name in TIMING):
            requested.words.append("arrivals=replay")
        return _typed(requested, _composed(requested))

    def note_displaced(self, overrides: Sequence[str], options: Mapping[str, Any]) -> None:
        """Print a note for each value that a later word, or an option, displaces."""
        given = {_key(name): value for name, value in options.items() if value is not None}
        texts = (
            f"{key}={value if isinstance(value, str) else reprlib.repr(value)}"
            for key, value in given.items()
        )
        print_notes(displaced_words([*overrides, *texts]))

    def noted_once(
        self, overrides: Sequence[str], options: Mapping[str, Any]
    ) -> tuple[Sequence[str], dict[str, Any]]:
        """The overrides and options that count, with those of a server's command, after the notes
        on both.
        """
        self.note_displaced(overrides, options)
        given = {_key(name) for name, value in options.items() if value is not None}
        kept = [word for word in words_that_count(overrides) if key_of(word) not in given]
        left = {key: _python(value) for key, value in options.items() if value is not None}
        return _with_server_command(kept, left, print_note), left

    def check_possible(self, config: RunConfig, share: float) -> None:
        """Raise NotSustained if no rate keeps the objectives, as a plan finds without a run."""
        from testbed.experiments.plan.never_kept import check_possible

        check_possible(config, share)

    def with_one_source(
        self,
        overrides: Sequence[str],
        options: Mapping[str, Any],
        points: Sequence[Mapping[str, Any]],
    ) -> Sequence[str]:
        """The overrides, with a note and one word more if not all of these runs have measured
        iterations: the costs of all are derived then. options: of every run, beside those of its
        point. A key of costs is a choice already.
        """
        keys = [*map(key_of, overrides), *options, *(key for point in points for key in point)]
        if any(group_of(key) == COST for key in keys):
            return overrides
        servers = {
            tuple((key, repr(value)) for key, value in point.items() if not _is_of_load(key)): point
            for point in points
        }
        configs = (  # whose notes each run prints
            self.configure(overrides, {**options, **point}, no_note) for point in servers.values()
        )
        if len(servers) < 2 or not configs_differ(configs):
            return overrides
        print_note(WHY)
        return [*overrides, OF_ONE_SOURCE]

    def measure(self, config: RunConfig, folder: Path) -> dict[str, Any]:
        """The summary of a run, read from its folder below `folder` if the run is complete."""
        return run_into(config, folder).summary

    def score(self, policy: Any, suite: str, rules: str) -> Score:
        """See `testbed.arena.score`."""
        from testbed.experiments.arena.scoring import score

        return score(policy, suite, rules)

    @property
    def views(self) -> Views:
        """The module that shows and saves results."""
        from testbed.experiments.look.notebook import result_views

        return result_views


def _key(name: str) -> str:
    """The key of an option of a run by its name."""
    return KEYS.get(name, SHORT.get(name, name)).lstrip("+")


def _is_of_load(name: str) -> bool:
    return group_of(_key(name)) in OF_THE_LOAD


def _with_server_command(
    overrides: Sequence[str], options: dict[str, Any], on_note: OnNote
) -> Sequence[str]:
    """The overrides, with those of a server's command, whose option is taken out; other options
    count more than the command.
    """
    commands = {name: options.pop(name, None) for name in TRANSLATIONS}
    given = {name: command for name, command in commands.items() if command is not None}
    if not given:
        return overrides
    if len(given) > 1:
        raise InputError(key=", ".join(given), problem="only one server's command may be given")
    ((name, command),) = given.items()
    if not isinstance(command, str):
        raise InputError(
            key=name, value=reprlib.repr(command), problem="must be a command as one text"
        )
    option_words = [
        f"{SHORT.get(key, key)}={value}"
        for key, value in options.items()
        if isinstance(value, str | int | float)
    ]
    if not isinstance(options.get("policy", ""), str | Mapping):
        option_words.append(f"policy={_option_of('policy', options['policy'])}")
    expand = import_module(TRANSLATIONS[name]).expand
    words = expand(command, [*overrides, *option_words], on_note)
    return [word for word in words if word not in option_words]


def _check_no_pool(overrides: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise InputError for an option of the pool's size: a policy object has its pool already."""
    keys = [*options, *(key_of(word) for word in overrides)]
    if pool := next((key for key in keys if key.startswith(POOL)), None):
        raise InputError(
            key=pool,
            problem="does not go with a policy that is made already, with its pool",
            remedy="give the class",
        )


def _composed(requested: Requested) -> DictConfig:
    """The composed config with the caller's values; parts are classes by name."""
    config = composed("run", requested.words)
    for group, part in requested.parts.items():
        config[group]["_target_"] = part.name
    for name, part in requested.inner_parts.items():
        config[OWNERS[name]][name]["_target_"] = part.name
    for key, spec in requested.specs.items():
        OmegaConf.update(config, key, spec, merge=False)
    for key, value in requested.values.items():
        _set(config, key, value, is_free=key.partition(".")[0] in requested.user_groups)
    return config


def _set(config: DictConfig, key: str, value: Any, *, is_free: bool) -> None:
    """Set one value; is_free: the key may be new."""
    if not is_free:
        check_key(key, config, tuple(SHORT))
    try:
        # Merging an empty table would change nothing.
        OmegaConf.update(config, key, value, merge=value != {}, force_add=is_free)
    except OmegaConfBaseException as error:
        if isinstance(error, ConfigKeyError):  # of a mapping
            check_key(str(error.full_key), config, tuple(SHORT))
        raise InputError(
            key=key, value=reprlib.repr(value), problem=flat(error.msg or "")
        ) from error


def _typed(requested: Requested, config: DictConfig) -> RunConfig:
    """The typed config, whose parts are the caller's classes and objects."""
    typed = typed_config(config, [*requested.words, *requested.values, *requested.specs])
    for name, part in requested.inner_parts.items():
        owner = getattr(typed, OWNERS[name]).updated(**{name: part})
        typed = replace(typed, **{OWNERS[name]: owner})
    parts = {
        key: replace(getattr(typed, key).updated(**part.parameters), target=part.target)
        for key, part in requested.parts.items()
    }
    return replace(typed, **parts)


def _part(value: Any) -> Part:
    """A class, a function, an instance, or a pair of one of the first two and its parameters."""
    is_pair = isinstance(value, list) and len(value) == 2
    if is_pair and callable(value[0]) and isinstance(value[1], Mapping):
        return Part(value[0], value[1])
    return Part(value)


def _option_of(key: str, value: Any) -> str:
    """MODULE:CLASS of a policy's class without blocks that its name finds, by which a preset leaves
    out what it does not take; else the option for any class.
    """
    part = _part(value)
    name = ":".join(part.name.rpartition(".")[::2])
    if key != "policy" or not CLASS.fullmatch(name):
        return CUSTOM
    with suppress(InputError):
        is_found = locate(part.name, key) is part.target
        return CUSTOM if not is_found or policy_takes({key: name}, BLOCK_SIZE) else name
    return CUSTOM


def _python(value: Any) -> Any:
    """A value that a config accepts: Python's number for one of NumPy, a list for a tuple."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [_python(item) for item in value]
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return value
