"""Types of parameters of the commands that measure a vLLM, and what they refuse."""

from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import AboveZero

Python = Annotated[
    str, Parameter(metavar="PATH", help="the Python that has vLLM (default: this one)")
]
ServerCommand = Annotated[
    str,
    Parameter(metavar="COMMAND", help='the server, as "vllm serve MODEL --max-model-len 16384"'),
]
LimitSeconds = Annotated[
    AboveZero, Parameter(metavar="S", help="seconds after which nothing more is begun")
]
LIMIT_S = 420.0


def refuse_given(parameters: Mapping[str, object], choice: str) -> None:
    """Raise InputError for an option that nothing reads with the option that was chosen."""
    for name, value in parameters.items():
        if value is not None:
            option = name.replace("_", "-")
            raise InputError(
                key=f"--{option}", problem=f"nothing reads it with {choice}", remedy="leave it out"
            )
