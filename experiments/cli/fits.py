"""`testbed fits`: what a server of vLLM or SGLang, or this project's engine, holds, without a
simulation.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import AsJson, ConfigFolders
from testbed.experiments.runs.notes import print_notes

ServerCommand = Annotated[
    str,
    Parameter(
        name="COMMAND",
        help='a server\'s command: "vllm serve MODEL ...", "sglang serve --model-path MODEL '
        '...", or of this project\'s engine: "testbed run engine=gpu ..."',
    ),
]
Words = Annotated[
    str,
    Parameter(
        name="OVERRIDE",
        help="gpu=NAME of `testbed list gpu`, or gpu=FILE.yaml; model=NAME, whose shape the "
        "command's model has; release=NUMBER",
    ),
]
KEYS = ("gpu", "model", "release")
TermsFile = Annotated[
    Path, Parameter(metavar="FILE", help="terms that testbed calibrate fit memory wrote")
]


def fits(
    command: ServerCommand,
    /,
    *words: Words,
    config_dir: ConfigFolders | None = None,
    terms: TermsFile | None = None,
    json: AsJson = False,
) -> None:
    """Say what a server of vLLM or SGLang, or this project's engine, holds on a GPU.

    If it would not start, the reason. Weights, activation and KV cache in GiB, the lines that the
    server logs of its pool, of vLLM the longest max-model-len, and the smallest tensor parallelism
    that starts. Nothing is simulated.
    """
    from testbed.sglang.command import SGLANG

    values = _values(words)
    name, model = values["gpu"], values.get("model")
    named = NamedModel(model, tuple(config_dir or ()))
    of_vllm = OfVllm(values.get("release"), terms)
    if command.split()[:2] == ["testbed", "run"]:
        of_vllm.check_absent()
        named.check_absent()
        _show(*_engine(command, name), json=json)
    elif SGLANG.starts(command):
        of_vllm.check_absent()
        _show(*_sglang(command, name, named), json=json)
    else:
        _show(*of_vllm.answer(command, name, named), json=json)


def _values(words: tuple[str, ...]) -> dict[str, str]:
    """The values of the words by key; raises InputError for another key, and without a GPU."""
    values = dict[str, str]()
    for word in words:
        key, _, value = word.partition("=")
        if key not in KEYS or not value:
            raise InputError(
                key=word, problem="is not read", remedy=f"give {', '.join(f'{k}=' for k in KEYS)}"
            )
        if "," in value:
            raise InputError(
                key=word,
                problem="fits answers for one server",
                remedy=f"one command for each value, such as {key}={value.partition(',')[0]}"
                + ("; testbed plan compares several GPUs" if key == "gpu" else ""),
            )
        values[key] = value
    if "gpu" not in values:
        raise InputError(key="fits", problem="names no GPU", remedy="gpu=NAME")
    return values


@dataclass(frozen=True)
class NamedModel:
    """The model that stands in for a command's, if any, and the folders of own models and GPUs."""

    model: str | None
    folders: tuple[Path, ...]

    def check_absent(self) -> None:
        """Raise InputError if one is given."""
        if self.model is not None or self.folders:
            raise InputError(
                key="fits",
                problem="model= and --config-dir are of vLLM's and SGLang's commands",
                remedy='give them within "testbed run engine=gpu ..."',
            )


@dataclass(frozen=True)
class OfVllm:
    """The options of vLLM's servers alone."""

    release: str | None
    terms: Path | None

    def check_absent(self) -> None:
        """Raise InputError for an option that is given."""
        for key, value in (("release", self.release), ("--terms", self.terms)):
            if value is not None:
                raise InputError(
                    key=key, value=value, problem="is of vLLM's servers", remedy="leave it out"
                )

    def answer(self, command: str, gpu: str, named: NamedModel) -> tuple[Any, list[str]]:
        """The answer, and its lines."""
        from testbed.experiments.vllm_server.answer import fit_of, lines_of
        from testbed.experiments.vllm_server.stand_in import in_place
        from testbed.vllm.command import read_command
        from testbed.vllm.memory import terms_in
        from testbed.vllm.releases import NEWEST, release_numbered

        of = None if self.terms is None else terms_in(self.terms)
        release = release_numbered(self.release)
        print_notes(in_place(read_command(command).model, named.model))
        fit = fit_of(command, gpu, release, of, model=named.model, folders=named.folders)
        lines = lines_of(fit)
        if self.release is None:
            lines.append(
                f"no release is named: vLLM {release.number}, the default; "
                f"release={NEWEST.number} is the newest"
            )
        return fit, lines


def _sglang(command: str, gpu: str, named: NamedModel) -> tuple[Any, list[str]]:
    from testbed.experiments.sglang_server.answer import fit_of, lines_of
    from testbed.experiments.vllm_server.stand_in import in_place
    from testbed.sglang.command import read_command

    print_notes(in_place(read_command(command).values.get("--model-path"), named.model))
    fit = fit_of(command, gpu, named.model, named.folders)
    return fit, lines_of(fit)


def _engine(command: str, gpu: str) -> tuple[Any, list[str]]:
    from testbed.experiments.real.engine_fit import engine_fit, lines_of

    fit = engine_fit(command, gpu)
    return fit, [*lines_of(fit)]


def _show(fit: Any, lines: list[str], *, json: bool) -> None:
    if json:
        from testbed.experiments.cli.output import print_json

        return print_json(fit)
    print(*lines, sep="\n")
