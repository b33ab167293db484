"""Read the options of a vLLM command; refuse those that are not modelled and change a result."""

import re
from collections.abc import Mapping, Sequence

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.specs import GpuSpec
from testbed.vllm.command import OFF, ON, SERVE, Command, number_of
from testbed.vllm.option_table import (
    COUNTED,
    HARMLESS,
    REFUSED,
    Option,
    may_have,
    refused_by_parser,
    releases_of,
)
from testbed.vllm.releases import Release

SEVERAL = "`testbed run -m` and `testbed plan` take several"
HARMLESS_VARIABLES = ("VLLM_LOGGING", "VLLM_CACHE_ROOT", "VLLM_CONFIG", "VLLM_API_KEY")
NEUTRAL_VARIABLES = {"VLLM_USE_V1": "1"}
LMCACHE = "LMCACHE_"  # read if the server has LMCache, else by nothing
PARTITION = "VLLM_PP_LAYER_PARTITION"
SCALED = ("--kv-cache-memory-bytes", "--max-model-len", "--max-num-batched-tokens")  # 8k
FRACTIONS = ("--gpu-memory-utilization", "--kv-offloading-size")  # 0.5
ESTIMATE_GRAPHS = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"


class OptionReader:
    """The values of understood options, as numbers; of a server of this release on this GPU."""

    def __init__(self, command: Command, release: Release, gpu: GpuSpec) -> None:
        self.release = release
        self.gpu = gpu
        self.values = command.values
        self.environment = command.environment
        self._keys = command.keys

    def value(self, name: str) -> str | None:
        return self.values.get(name)

    def is_on(self, name: str, *, default: bool = False) -> bool:
        return self.values.get(name, ON if default else OFF) == ON

    def refusal(self, name: str, problem: str, remedy: str = "") -> InputError:
        value = self._shown(name)
        return InputError(key=self.place(name), value=value, problem=problem, remedy=remedy)

    def does_not_start(self, name: str, problem: str, remedy: str = "") -> DoesNotStart:
        return DoesNotStart(
            key=self.place(name),
            value=self._shown(name),
            problem=problem,
            remedy=remedy,
        )

    def _shown(self, name: str) -> str | None:
        """The value that is given to an option or a variable of the environment; None: none is, or
        the option has none.
        """
        value = self.values.get(name, self.environment.get(name))
        return None if value == ON else value

    def named(self, option: str) -> str:
        """An option as the user writes it: as a key if a configuration is read."""
        return option if self._keys is None else self._keys.get(option, option)

    def place(self, option: str) -> str:
        """The key that a refusal names for an option, or for another part of the server."""
        return f"{SERVE}: {option}" if self._keys is None else self.named(option)

    def number(self, name: str, unit: str = "") -> float | None:
        """The number of an option; None: it is not given. unit: of the number, which has none."""
        text = self.values.get(name)
        if text is None:
            return None
        number = number_of(text)
        if number is None or not _takes(name, text):
            remedy = f"a number alone, of {unit}" if unit else ""
            raise self.refusal(name, "is no number", SEVERAL if "," in text else remedy)
        return number

    def whole(self, name: str, otherwise: int) -> int:
        number = self.number(name)
        if number is None:
            return otherwise
        if number < 1 or number != int(number):
            raise self.refusal(name, "must be a whole number of at least 1")
        return int(number)

    def one_of(
        self, name: str, choices: Mapping[str, int | None], known: Sequence[str] = ()
    ) -> int | None:
        """The meaning of a value; raises InputError for another one. known: values that vLLM takes,
        and that are not modelled.
        """
        value = self.values.get(name, "auto")
        if value in known:
            raise self.refusal(name, "is not modelled", "leave it out to see the server without it")
        if value not in choices:
            raise self.refusal(name, "is unknown", f"choose from {', '.join(choices)}")
        return choices[value]


def _takes(name: str, text: str) -> bool:
    """True if vLLM's parser takes a number in this form for an option: with a scale, or a point."""
    if text[-1].isalpha():
        return name in SCALED
    return "." not in text or name in FRACTIONS


def check_release(command: Command, release: Release) -> None:
    """Refuse an option that only other releases have, and a value that the parser refuses."""
    for name, value in command.values.items():
        if not may_have(release.number, name):
            others = releases_of(name)
            raise InputError(
                key=f"{SERVE}: {name}",
                problem=f"is no option of vLLM {release.number}, but of {', '.join(others)}",
                remedy="release=NUMBER chooses the release",
            )
        if problem := refused_by_parser(release.number, command.options[name], value):
            raise InputError(key=f"{SERVE}: {name}", value=value, problem=problem)


def _remedy(option: Option, value: str) -> str:
    """The way in which a refused option may be given."""
    if option.of_zeros and set(re.findall(r"\d+", value)) == {"0"}:
        return f"{option.of_zeros} in its place, which is 0 of each kind"
    return "leave it out to see the server without it"


def notes_of(command: Command, for_memory: bool) -> tuple[str, ...]:
    """Notes on options that change nothing; raises InputError for what is not modelled."""
    notes = []
    for name, value in command.values.items():
        option = command.options[name]
        shown = f"{name} {value}" if value not in (ON, OFF) else name
        if option.kind == HARMLESS:
            notes.append(f"{shown} ({option.reason})")
        if option.kind != REFUSED or value in option.neutral or value == OFF:
            continue
        if option.ends_start:
            raise DoesNotStart(key=f"{SERVE}: {shown}", problem=option.reason)
        if option.for_memory and for_memory:
            notes += [] if option.for_memory == COUNTED else [f"{shown} ({option.for_memory})"]
            continue
        raise InputError(
            key=f"{SERVE}: {shown}",
            problem=f"has no counterpart, and changes the result: {option.reason}",
            remedy=_remedy(option, value),
        )
    for name, value in command.environment.items():
        if name in (ESTIMATE_GRAPHS, PARTITION) or name.startswith(LMCACHE):
            continue
        is_read = name.startswith("VLLM_") and not name.startswith(HARMLESS_VARIABLES)
        if is_read and NEUTRAL_VARIABLES.get(name) != value:
            raise InputError(
                key=f"{SERVE}: {name}",
                value=value,
                problem="is not modelled",
                remedy="leave it out",
            )
        notes.append(f"{name} (the environment is not read)")
    return tuple(notes)
