"""`testbed fits`: what a vLLM server, or this project's engine, holds, without a simulation."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import AsJson, ConfigFolders

ServerCommand = Annotated[
    str,
    Parameter(
        name="COMMAND",
        help="a server's command: \"vllm serve MODEL ...\", or of this project's engine: "
        '"testbed run engine=gpu ..."',
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
ReleaseNumber = Annotated[str | None, Parameter(metavar="NUMBER", help="vLLM's release")]
TermsFile = Annotated[
    Path, Parameter(metavar="FILE", help="terms that testbed calibrate fit memory wrote")
]
ScratchBySlot = Annotated[
    bool, Parameter(help="states of drafts by running slot, as vLLM PR 57261 would; not merged")
]


def fits(
    command: ServerCommand,
    /,
    *words: Words,
    config_dir: ConfigFolders | None = None,
    release: ReleaseNumber = None,
    terms: TermsFile | None = None,
    scratch_by_slot: ScratchBySlot = False,
    json: AsJson = False,
) -> None:
    """Say what a vLLM server, or this project's engine, holds on a GPU.

    Where vLLM would not start, the reason. Weights, activation and KV cache in GiB, the tokens and
    the concurrency that vLLM logs, the longest max-model-len and the smallest tensor parallelism
    that start. Nothing is simulated.
    """
    from testbed.experiments.vllm_server.answer import fit_of, lines_of
    from testbed.vllm.memory import terms_in
    from testbed.vllm.releases import release_numbered

    values = _values(words)
    gpu = values["gpu"]
    if command.split()[:2] == ["testbed", "run"]:
        return _fits_engine(command, gpu, json=json)
    fit = fit_of(
        command,
        gpu,
        release_numbered(release or values.get("release")),
        None if terms is None else terms_in(terms),
        scratch_by_slot=scratch_by_slot,
        model=values.get("model"),
        folders=config_dir or (),
    )
    if json:
        from testbed.experiments.cli.output import print_json

        return print_json(fit)
    print(*lines_of(fit), sep="\n")


def _values(words: tuple[str, ...]) -> dict[str, str]:
    """The values of the words by key; raises InputError for another key, and without a GPU."""
    values = dict[str, str]()
    for word in words:
        key, _, value = word.partition("=")
        if key not in KEYS or not value:
            raise InputError(f"{word}: is not read (give {', '.join(f'{k}=' for k in KEYS)})")
        values[key] = value
    if "gpu" not in values:
        raise InputError("fits: names no GPU (gpu=NAME)")
    return values


def _fits_engine(command: str, gpu: str, *, json: bool) -> None:
    from testbed.experiments.real.engine_fit import engine_fit, lines_of

    fit = engine_fit(command, gpu)
    if json:
        from testbed.experiments.cli.output import print_json

        return print_json(fit)
    print(*lines_of(fit), sep="\n")
