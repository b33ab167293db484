"""The command of a server of another system, whose words come before the overrides."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.runs.notes import OnNote, print_note

NAME = "--served-model-name"
POOLS = {"--num-gpu-blocks-override", "--kv-cache-memory-bytes", "--max-total-tokens"}
PLAIN = "plain"  # a command without words of its own beside others
OF_VLLM = (
    'the words of "vllm serve MODEL --max-num-seqs 64 ..." as overrides; what has no counterpart '
    "is reported"
)
OF_SGLANG = 'the same of "sglang serve --model-path MODEL ..."'
VllmCommand = Annotated[str, Parameter(metavar="COMMAND", help=OF_VLLM)]
SglangCommand = Annotated[str, Parameter(metavar="COMMAND", help=OF_SGLANG)]
VllmCommands = Annotated[
    list[str] | None,
    Parameter(metavar="COMMAND", help=f"{OF_VLLM}; several commands are compared (run: with -m)"),
]
SglangCommands = Annotated[list[str] | None, Parameter(metavar="COMMAND", help=OF_SGLANG)]


@Parameter(name="*")
@dataclass(frozen=True)
class ServedCommand:
    """One of both, or none."""

    from_vllm: VllmCommand | None = None
    from_sglang: SglangCommand | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which the command serves its model; none without a command."""
        model, values = self._read
        name = values.get(NAME, model)
        if name is None:
            return ()
        return (name,) if self.from_vllm is None else tuple(name.split())

    @property
    def states_pool(self) -> bool:
        """True if the command gives the size of its pool."""
        _, values = self._read
        return not POOLS.isdisjoint(values)

    @property
    def _read(self) -> tuple[str | None, Mapping[str, str]]:
        """The model of the command, and its options by name; neither without a command."""
        from testbed.sglang import command as of_sglang
        from testbed.vllm import command as of_vllm

        if self.from_vllm is not None:
            command = of_vllm.read_command(self.from_vllm)
            return command.model, command.values
        if self.from_sglang is not None:
            values = of_sglang.read_command(self.from_sglang).values
            return values.get("--model-path"), values
        return None, {}

    def check(self) -> None:
        """Raise InputError for both."""
        if self.from_vllm is not None and self.from_sglang is not None:
            raise InputError(
                key="--from-sglang", problem="goes with no --from-vllm", remedy="give one of them"
            )

    def words(
        self,
        overrides: Sequence[str],
        folders: Sequence[Path] = (),
        on_note: OnNote = print_note,
    ) -> list[str]:
        """The overrides, with those of the command and the folders of user options before them."""
        words = [*(f"--config-dir={folder}" for folder in folders), *overrides]
        if self.from_vllm is None and self.from_sglang is None:
            return words
        self.check()
        from testbed.experiments.sglang_server import translation as of_sglang
        from testbed.experiments.vllm_server import translation as of_vllm

        words = of_sglang.expand(self.from_sglang, words, on_note)
        return of_vllm.expand(self.from_vllm, words, on_note)


NO_COMMAND = ServedCommand()


@Parameter(name="*")
@dataclass(frozen=True)
class ServedCommands:
    """The command of a run, or those of a sweep, whose points have one each."""

    from_vllm: VllmCommands = None
    from_sglang: SglangCommands = None

    @property
    def each(self) -> Mapping[str, ServedCommand]:
        """Every command by its own words, those that not all of them have; without any command the
        empty text. Raises InputError for a command that is there twice.
        """
        texts = [*(self.from_vllm or ()), *(self.from_sglang or ())]
        if twice := next((text for text in texts if texts.count(text) > 1), None):
            raise InputError(key=twice, problem="is there twice", remedy="give each command once")
        served = [ServedCommand(text) for text in self.from_vllm or ()]
        served += [ServedCommand(None, text) for text in self.from_sglang or ()]
        if len(served) < 2:
            return {"": served[0] if served else NO_COMMAND}
        return dict(zip(own_words(texts), served, strict=True))

    @property
    def one(self) -> ServedCommand:
        """The command of a run. Raises InputError for several."""
        if len(self.each) > 1:
            raise InputError(
                key="--from-sglang" if self.from_sglang else "--from-vllm",
                problem="is one of several commands",
                remedy="give one of them, or -m, which runs each",
            )
        return next(iter(self.each.values()))


NO_COMMANDS = ServedCommands()


def own_words(commands: Sequence[str]) -> list[str]:
    """The words of each command that not all of them have, options with their values, PLAIN for
    none; the whole command if two would have the same ones.
    """
    split = [_parts(command) for command in commands]
    common = set(split[0]).intersection(*split)
    own = [" ".join(part for part in parts if part not in common) or PLAIN for parts in split]
    return own if len(set(own)) == len(own) else list(commands)


def _parts(command: str) -> list[str]:
    """The words of a command, an option and its values as one."""
    try:
        words = shlex.split(command)
    except ValueError:  # an open quotation, which reading the command refuses
        words = command.split()
    parts = list[str]()
    for word in words:
        if word.startswith("-") or not parts or not parts[-1].startswith("-"):
            parts.append(word)
        else:
            parts[-1] += f" {word}"
    return parts
