"""Logs of real servers on a command line, with the values of a config among them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed import experiments
from testbed.core.errors import InputError
from testbed.experiments.cli.served_command import NO_COMMAND, ServedCommand
from testbed.run.override_words import key_of

if TYPE_CHECKING:
    from testbed.experiments.real.validation.logged_server import LoggedServer
    from testbed.traces.vllm_log import VllmLog

EXAMPLE = "example"  # the word for a log that ships
EXAMPLE_LOG = (
    Path(experiments.__file__).parent
    / "real/vllm_engine/results/h100-llama-3.1-8b/2000-blocks-16.7/requests.jsonl.gz"
)
BENCHMARK = "trace.benchmark"  # the one word of a trace's that a log leaves open
IN_FOLDERS = ("requests.csv", "requests.jsonl", "requests.jsonl.gz", "profile_export.jsonl")
LogWord = Annotated[
    str,
    Parameter(
        name="LOG | KEY=VALUE",
        required=True,
        help="logs: requests.jsonl of vLLM's engine, the JSON of vllm bench serve --save-detailed "
        "or of GuideLLM, aiperf's profile_export.jsonl, a CSV with input_tokens, output_tokens, "
        "arrival_s, first_token_s, finish_s, or a run's requests.csv; `example` is a log of "
        "vLLM 0.20.2 that ships; values: those of testbed run, such as +system=vllm-v1 "
        "cost=profile cost.path=FILE server.num_blocks=N; with cost=profile, model, GPU and "
        "number of GPUs are the profile's; KV blocks are those of meta.json in a log's folder, "
        "if there is one",
    ),
]
Workload = Annotated[
    str,
    Parameter(
        metavar="FILE",
        help="the prompts' contents, JSON line by line as in the log: input_tok_ids, or hash_ids "
        "(each of tokens_per_id tokens, by default 512)",
    ),
]
LogConfigFolder = Annotated[
    str, Parameter(metavar="DIR", help="a folder of user options, as in testbed run")
]


@dataclass(frozen=True)
class LogRequest:
    """The logs that a command replays, and the options of their server.

    words: paths, or `example`, and overrides in any order.
    """

    command: str
    words: Sequence[str]
    workload: str | None = None
    config_dir: str | None = None
    others: Sequence[str] = ()  # words that are no log: the subcommands of `command`
    served: ServedCommand = NO_COMMAND

    def with_words(self, *more: str) -> "LogRequest":
        """The same logs, with more overrides."""
        return replace(self, words=[*self.words, *more])

    @property
    def paths(self) -> list[str]:
        """The logs."""
        paths = [
            str(EXAMPLE_LOG) if word == EXAMPLE and not Path(word).exists() else word
            for word in self.words
            if Path(word).is_file() or "=" not in word
        ]
        for path in paths:
            if not Path(path).is_file():
                raise _no_log(path, self.others)
        if not paths:
            raise InputError(
                key="LOG", problem="is missing", remedy=f"see testbed {self.command} --help"
            )
        if self.workload and len(paths) > 1:
            raise InputError(
                key="--workload",
                problem=f"is the workload of a single log ({self.command} the others separately)",
            )
        return paths

    @property
    def overrides(self) -> list[str]:
        """The values of a config."""
        paths = {*self.paths, EXAMPLE}
        without_paths = [
            word for word in self.words if word not in paths and key_of(word) != BENCHMARK
        ]
        folders = [Path(self.config_dir)] if self.config_dir else []
        words = self.served.words(without_paths, folders)
        return [word for word in words if word in without_paths or not word.startswith("workload.")]

    @property
    def benchmark(self) -> int | None:
        """The rate to read, from 0, of GuideLLM files with several; the last word counts."""
        given = [word for word in self.words if key_of(word) == BENCHMARK]
        if not given:
            return None
        number = given[-1].partition("=")[2]
        if not (number.isascii() and number.isdigit()):
            raise InputError(key=given[-1], problem="must be a whole number of at least 0")
        return int(number)

    def replayed(self) -> "tuple[list[VllmLog], list[LoggedServer]]":
        """The logs, and the server of each."""
        from testbed.experiments.real.validation.log_replay import server_config
        from testbed.experiments.real.validation.logged_server import logged_servers, states_pool
        from testbed.traces.vllm_log import VllmLog

        logs = [VllmLog(path, self.workload, self.benchmark) for path in self.paths]
        is_stated = states_pool(self.words) or self.served.states_pool
        return logs, logged_servers(logs, server_config(self.overrides), is_stated)


def _no_log(path: str, others: Sequence[str]) -> InputError:
    """The refusal of a path without a file. others: words that a command knows."""
    from testbed.core.spelling import did_you_mean

    if not Path(path).is_dir():
        return InputError(
            key=path,
            problem=f"no such log{did_you_mean(path, others)}",
            remedy="give the path of a requests.jsonl, JSON or CSV, or `example`",
        )
    inside = next((file for name in IN_FOLDERS if (file := Path(path, name)).is_file()), None)
    return InputError(
        key=path,
        problem="is a folder",
        remedy="name the log in it" if inside is None else f"give {inside}",
    )
