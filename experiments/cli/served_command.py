"""The command of a server of another system, whose words come before the overrides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError

NAME = "--served-model-name"
VllmCommand = Annotated[
    str,
    Parameter(
        metavar="COMMAND",
        help='the words of "vllm serve MODEL --max-num-seqs 64 ..." as overrides; what has no '
        "counterpart is reported",
    ),
]
SglangCommand = Annotated[
    str, Parameter(metavar="COMMAND", help='the same of "sglang serve --model-path MODEL ..."')
]


@Parameter(name="*")
@dataclass(frozen=True)
class ServedCommand:
    """One of both, or none."""

    from_vllm: VllmCommand | None = None
    from_sglang: SglangCommand | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The name under which the command serves its model; none without a command."""
        from testbed.sglang import command as of_sglang
        from testbed.vllm import command as of_vllm

        if self.from_vllm is not None:
            command = of_vllm.read_command(self.from_vllm)
            name = command.values.get(NAME, command.model)
        elif self.from_sglang is not None:
            values = of_sglang.read_command(self.from_sglang).values
            name = values.get(NAME, values.get("--model-path"))
        else:
            return ()
        return () if name is None else (name,)

    def words(self, overrides: Sequence[str], folders: Sequence[Path] = ()) -> list[str]:
        """The overrides, with those of the command and the folders of user options before them."""
        from testbed.run.override_words import key_of

        for word in overrides:
            if key_of(word) == "hydra.mode":
                raise InputError(key=word, problem="is not read", remedy="-m makes a sweep")
        words = [*(f"--config-dir={folder}" for folder in folders), *overrides]
        if self.from_vllm is None and self.from_sglang is None:
            return words
        if self.from_vllm is not None and self.from_sglang is not None:
            raise InputError(
                key="--from-sglang", problem="goes with no --from-vllm", remedy="give one of them"
            )
        from testbed.experiments.sglang_server import translation as of_sglang
        from testbed.experiments.vllm_server import translation as of_vllm

        return of_vllm.expand(self.from_vllm, of_sglang.expand(self.from_sglang, words))


NO_COMMAND = ServedCommand()
