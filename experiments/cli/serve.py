"""`testbed serve`: a simulated server behind OpenAI's API."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.experiments.cli.parameters import (
    AboveZero,
    AtLeastOne,
    ConfigFolders,
    Override,
    WholeNumber,
)
from testbed.experiments.cli.served_command import NO_COMMAND, ServedCommand

if TYPE_CHECKING:
    from testbed.run.config import RunConfig

Host = Annotated[str, Parameter(metavar="ADDRESS", help="address to bind")]
Port = Annotated[WholeNumber, Parameter(help="port to bind")]
Speed = Annotated[
    AboveZero, Parameter(metavar="X", help="simulated seconds in a second of real time")
]
OutputLengths = Annotated[
    str | None,
    Parameter(
        metavar="MODEL",
        help="length model from which answers without ignore_eos draw their length: alpaca, "
        "sharegpt, wmt; default: an answer has max_tokens tokens, and a chat without max_tokens "
        "a draw from sharegpt",
    ),
]
Tokenizer = Annotated[
    Path | None,
    Parameter(metavar="DIR", help="folder with the tokenizer.json that counts prompts"),
]
Log = Annotated[
    Path | None,
    Parameter(
        metavar="FILE",
        help="new requests.jsonl of lengths and simulated times, for testbed validate",
    ),
]
MaxQueue = Annotated[
    AtLeastOne, Parameter(help="unfinished requests, beyond which 429 is the answer")
]
DrainSeconds = Annotated[
    AtLeastOne, Parameter(help="seconds in which requests may end at shutdown")
]


@Parameter(name="*")
@dataclass(frozen=True)
class Bounds:
    """The load that the server takes, and the time that it has to end."""

    max_queue: MaxQueue = 4096
    drain_s: DrainSeconds = 30


USUAL_BOUNDS = Bounds()


def serve(
    *overrides: Override,
    served: ServedCommand = NO_COMMAND,
    config_dir: ConfigFolders | None = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    speed: Speed | None = None,
    output_lengths: OutputLengths = None,
    tokenizer: Tokenizer = None,
    log: Log = None,
    bounds: Bounds = USUAL_BOUNDS,
) -> None:
    """Serve a simulated server behind OpenAI's API, in real time.

    Clients, load balancers and autoscalers run against any policy, model and GPU. Answers are
    placeholder words that come when the simulation says so. Requests name the model as the
    command of --from-vllm or --from-sglang serves it, or as model= does. For example:

    testbed serve model=opt-13b policy=paged --port 8000
    """
    _check_installed()
    from testbed.core.errors import InputError
    from testbed.experiments.runs.compose import configured
    from testbed.experiments.runs.notes import print_notes
    from testbed.serving.client_limits import Limits
    from testbed.serving.http_server import ServeOptions, serve

    if not 0 < port < 65536:
        raise InputError(key="--port", value=port, problem="must be from 1 to 65535")
    words = served.words(overrides, config_dir or [])
    limits = Limits(max_unfinished=bounds.max_queue)
    options = ServeOptions(host, port, speed, output_lengths, tokenizer, log)
    options = replace(options, drain_s=bounds.drain_s, limits=limits, names=served.names)
    config = configured(words)
    print_notes(_notes(config, tokenizer))
    serve(config, options)


def _notes(config: "RunConfig", tokenizer: Path | None) -> Iterator[str]:
    """The error of a simulated server's times, and of the lengths of prompts."""
    if config.engine is not None:
        return
    from testbed.run.cost_words import costs_in_words

    yield f"costs: {costs_in_words(config)}"
    if tokenizer is None:
        yield (
            "texts are counted in words of at most six characters, not in the model's tokens "
            "(--tokenizer DIR, a folder with its tokenizer.json)"
        )


def _check_installed() -> None:
    """Raise InputError if a package of the extra `serve` is missing."""
    from testbed.core.errors import InputError

    try:
        import testbed.serving.http_server  # noqa: F401
    except ImportError as error:
        raise InputError(
            key="serve",
            problem=f"{error.name} is not installed",
            remedy="install kvcache-testbed[serve]",
        ) from None
