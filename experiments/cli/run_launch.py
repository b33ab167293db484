"""One run of `testbed run`, in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.experiments.cli.output import print_json, wide_console
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.error_lines import as_refusal
from testbed.experiments.runs.run_folder import run_into
from testbed.experiments.runs.summary_table import summary_table
from testbed.experiments.runs.words import chosen

if TYPE_CHECKING:
    from testbed.experiments.cli.run import Launch

RUNS = "runs"  # the default folder of all runs
RUN_FOLDER = "hydra.run.dir"


def run_one(words: Sequence[str], launch: "Launch", notes: list[str]) -> None:
    """Run one configuration and print its summary. notes: on the command that the words are of."""
    config = configured(words)
    requested = chosen(words).get(RUN_FOLDER)
    folder = None if requested is None else Path(requested)
    if launch.sensitivity:  # which few runs ask for
        from testbed.experiments.cli import sensitive_run
        from testbed.study.sensitivity import check_scalable

        check_scalable(config)
    try:
        stored = run_into(config, Path(RUNS), folder, again=launch.again, show=True)
        intervals = sensitive_run.rows(config, stored.summary) if launch.sensitivity else []
    except SystemExit as error:  # of a plug-in
        raise as_refusal(error) from None
    if launch.json:
        from testbed.experiments.cli.json_answers import RunAnswer

        place = str(stored.folder)
        return print_json(RunAnswer(place, stored.is_new, notes, stored.summary, intervals))
    console = wide_console()
    console.print(summary_table(stored.summary))
    if launch.sensitivity:
        console.print(sensitive_run.table(config, stored.summary, intervals))
    complete = "complete already, nothing was run (--again runs it again)"
    state = "run folder" if stored.is_new else complete
    console.print(f"{state}: {stored.folder}", highlight=False)
