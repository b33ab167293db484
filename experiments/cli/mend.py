"""`testbed mend`: which change betters a vLLM server that preempts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli import exit_codes
from testbed.experiments.cli.parameters import AsJson, AtLeastOne, ConfigFolders, Override

if TYPE_CHECKING:
    from testbed.experiments.mend.trials import Mending

RUNS = Path("runs/mend")
Command = Annotated[str, Parameter(name="COMMAND", help='a server\'s command: "vllm serve MODEL"')]
SeedCount = Annotated[
    AtLeastOne,
    Parameter(help="seeds, from 0 on: of the server, and of changes that the first 3 leave open"),
]
By = Annotated[
    str | None,
    Parameter(
        metavar="GOAL",
        help="latency (mean, to the last token), goodput (req/s that keep the SLO), share (of "
        "requests that keep it) or preemptions; without it goodput if slo.* is given, else latency",
    ),
]
Runs = Annotated[Path, Parameter(metavar="DIR", help="folders of the simulated runs")]


def mend(
    command: Command,
    /,
    *overrides: Override,
    seeds: SeedCount = 10,
    by: By = None,
    config_dir: ConfigFolders | None = None,
    runs: Runs = RUNS,
    json: AsJson = False,
) -> int:
    """Find the change that betters a vLLM server which preempts.

    The server runs as it is, then with fewer sequences, with more memory or a larger pool, with
    other budgets of a batch, with an FP8 cache, with swapping and with a watermark, and with more
    sequences if it falls behind at their limit, as it is or with such a change; all on the same
    seeds: each change on three, and on all if it may be the best by these. A change is better if
    the goal's difference, seed by seed, is distinguishable (p < 0.05, corrected for the number of
    changes) and at least 2% of the goal. Prints a table with 95% intervals, the best change first,
    and the differences. A change whose runs fail has no verdict.
    The best one ends all preemptions and makes nothing worse, else betters the goal most, whatever
    it makes worse. Of preemptions that are not distinguishable from none it ends all and betters
    the goal most.
    Exit code 1 if the server preempts and none of the options tried does either.

    testbed mend "vllm serve MODEL" gpu=h100-80gb trace=csv trace.path=FILE arrivals=replay
    """
    from testbed.experiments.mend.trials import Search
    from testbed.experiments.runs.words import is_of_hydra

    _check(command, overrides)
    words = [*(f"--config-dir={folder}" for folder in config_dir or ()), *overrides]
    launcher = tuple(word for word in words if is_of_hydra(word))
    others = tuple(word for word in words if word not in launcher)
    mending = Search(command, others, tuple(range(seeds)), runs, launcher, by).found()
    _print(mending, json=json)
    is_mended = not mending.preempts or mending.best is not None
    return exit_codes.ANSWERED if is_mended else exit_codes.NO


def _check(command: str, overrides: Sequence[str]) -> None:
    """Raise InputError for a server of SGLang's, and for a seed."""
    from testbed.run.override_words import key_of
    from testbed.sglang.command import SGLANG

    if SGLANG.starts(command):
        raise InputError(
            key=SGLANG.serve,
            problem="mend tries the options of vLLM alone",
            remedy="testbed run --from-sglang COMMAND simulates the server as it is",
        )
    if seed := next((word for word in overrides if key_of(word) == "seed"), None):
        raise InputError(
            key=seed, problem="is not read", remedy="--seeds N runs the seeds 0 to N - 1"
        )


def _print(mending: "Mending", *, json: bool) -> None:
    from testbed.experiments.cli.json_answers import mend_answer
    from testbed.experiments.cli.output import plain_table, print_json, show
    from testbed.experiments.mend import mend_lines

    if json:
        return print_json(mend_answer(mending))
    show(
        *mend_lines.lines_of(mending),
        "",
        plain_table(mend_lines.head_of(mending), mend_lines.rows_of(mending)),
    )
    if mending.tried:
        show("", "differences from the server as it is, on the same seeds:")
        show(
            plain_table(mend_lines.head_of_differences(mending), mend_lines.differences_of(mending))
        )
    show(*mend_lines.remarks_of(mending))
