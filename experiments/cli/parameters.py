"""Types of parameters that several commands share: each with its check and its help."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

from testbed.core.errors import InputError
from testbed.run.override_words import key_of

PICTURES = (".pdf", ".png", ".svg")


def _whole_number(_: Any, tokens: Sequence[Token]) -> int:
    """The one token as an int; the library's own conversion would round 1.5 to 2."""
    (token,) = tokens
    try:
        return int(token.value)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _at_least_one(_: Any, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError("must be at least 1")


def _above_zero(_: Any, value: float | None) -> None:
    if value is not None and not (value > 0 and isfinite(value)):
        raise ValueError("must be a number above 0")


def _seconds(_: Any, value: float | None) -> None:
    from testbed.core.units import LAST_S

    if value is not None and not 0 <= value <= LAST_S:
        raise ValueError(f"must be a number of seconds from 0 to {LAST_S:,}")


def _picture(_: Any, path: Path | None) -> None:
    if path is not None and path.suffix not in PICTURES:
        raise ValueError(f"must end in {', '.join(PICTURES)}")


WholeNumber = Annotated[int, Parameter(converter=_whole_number, metavar="N")]
AtLeastOne = Annotated[
    int, Parameter(converter=_whole_number, validator=_at_least_one, metavar="N")
]
AboveZero = Annotated[float, Parameter(validator=_above_zero)]
Seconds = Annotated[float, Parameter(validator=_seconds, metavar="S")]
Picture = Annotated[Path, Parameter(validator=_picture, metavar="FILE")]

Seeds = Annotated[
    AtLeastOne, Parameter(help="repeat each point with the seeds 0 to N - 1; gives 95% intervals")
]

# Of a profile that is made from another one or from measurements
ModelName = Annotated[
    str | None,
    Parameter(metavar="NAME", help="a model's name, or its config.json (default: the source's)"),
]
GpuName = Annotated[
    str | None,
    Parameter(metavar="NAME", help="a GPU's name, or a data sheet as JSON (default: the source's)"),
]
ProfileOut = Annotated[Path, Parameter(metavar="FILE", help="profile JSON to write")]

Override = Annotated[
    str,
    Parameter(
        name="OVERRIDE",
        help="Hydra words: GROUP=NAME selects an option, GROUP=MODULE:CLASS a class of yours, "
        "KEY=VALUE sets a value",
    ),
]
ConfigFolder = Annotated[
    Path, Parameter(metavar="DIR", help="a folder of user options: DIR/model/NAME.yaml, ...")
]
ConfigFolders = Annotated[
    list[Path],
    Parameter(
        name="--config-dir",
        metavar="DIR",
        help="a folder of user options: DIR/model/NAME.yaml, ...; may be given again",
    ),
]
PlugIns = Annotated[
    list[str],
    Parameter(
        name="--plug-in",
        metavar="MODULE:CLASS",
        help="load this class of yours, which the folder's run names; may be given again",
    ),
]
AsJson = Annotated[
    bool, Parameter(name="--json", help="print JSON (experiments/cli/JSON.md) instead of tables")
]


def check_folder_of(*files: Path | None) -> None:
    """Raise InputError for a file that could not be written, before anything is simulated."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise InputError(
                key=file, problem=f"the folder {file.parent} does not exist", remedy="make it first"
            )


def seed_words(words: Sequence[str], seeds: int | None) -> list[str]:
    """The override of `--seeds N`; none without it. Raises InputError if the words have a seed."""
    if seeds is None:
        return []
    if seed_word := next((word for word in words if key_of(word) == "seed"), None):
        raise InputError(
            key="--seeds",
            value=seeds,
            problem=f"does not go with {seed_word}",
            remedy="give one of them",
        )
    return [f"seed={','.join(map(str, range(seeds)))}"]
