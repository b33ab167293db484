"""`testbed run`: one simulation, or with -m a sweep."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import (
    AsJson,
    ConfigFolders,
    Override,
    Picture,
    Seeds,
    seed_words,
)
from testbed.experiments.cli.served_command import NO_COMMANDS, ServedCommands

if TYPE_CHECKING:
    from testbed.experiments.cli.run_launch import Drawing

app = App(name="run", help_flags=[])  # its own --help also shows the config groups


@Parameter(name="*")
@dataclass(frozen=True)
class Sweep:
    """Several runs in place of one."""

    multirun: Annotated[
        bool,
        Parameter(
            name=("--multirun", "-m"),
            help="run every combination of the overrides' comma-separated values",
        ),
    ] = False
    seeds: Seeds | None = None
    per_seed: Annotated[bool, Parameter(help="a row for each seed, not the mean of all")] = False
    figure: Annotated[
        Picture | None,
        Parameter(help="draw the sweep here (.png, .pdf or .svg), not beside its table"),
    ] = None
    metrics: Annotated[
        str | None,
        Parameter(
            metavar="NAMES", help="what it draws: columns of sweep.csv, as ttft_s_p50,tpot_s_p99"
        ),
    ] = None

    @property
    def is_asked_for(self) -> bool:
        """True if an option makes a sweep of the run."""
        return self.multirun or self.seeds is not None

    def check(self, *, sensitivity: bool) -> None:
        """Raise InputError for a figure of one run, and for the intervals of several."""
        if self.is_asked_for and sensitivity:
            raise InputError(
                key="--sensitivity", problem="is of one run", remedy="leave -m and --seeds out"
            )
        if not self.is_asked_for and (self.figure or self.metrics):
            raise InputError(
                key="--figure" if self.figure else "--metrics",
                problem="is of a sweep",
                remedy="give -m or --seeds; testbed show charts RUN draws one run",
            )

    @property
    def drawing(self) -> "Drawing":
        """The figure that is asked for."""
        from testbed.experiments.cli.run_launch import Drawing

        names = () if self.metrics is None else tuple(self.metrics.split(","))
        return Drawing(self.figure, names)


@Parameter(name="*")
@dataclass(frozen=True)
class Shown:
    """Hydra's options of the configuration."""

    config_name: Annotated[
        str | None,
        Parameter(metavar="NAME", help="the primary config, of a --config-dir (default: run)"),
    ] = None
    cfg: Annotated[
        Literal["job"] | None,
        Parameter(metavar="job", help="print the configuration as Hydra composes it; run nothing"),
    ] = None
    resolve: Annotated[bool, Parameter(help="print it with --cfg without interpolations")] = False


ONE_RUN = Sweep()
NOT_SHOWN = Shown()


@app.default
def run(
    *overrides: Override,
    sweep: Sweep = ONE_RUN,
    again: Annotated[bool, Parameter(help="repeat a run whose folder is complete")] = False,
    sensitivity: Annotated[
        bool,
        Parameter(
            help="also print the interval of latencies and preemptions: 20 times arrivals moved by "
            "up to 10 ms, and costs by what they were off by if that was measured, else by 3% "
            "up and down; takes some 22 runs more"
        ),
    ] = False,
    config_dir: ConfigFolders | None = None,
    served: ServedCommands = NO_COMMANDS,
    values: Annotated[
        bool, Parameter(help="print every value of this configuration with its unit; run nothing")
    ] = False,
    shown: Shown = NOT_SHOWN,
    json: AsJson = False,
    help: Annotated[
        bool, Parameter(name=("--help", "-h"), help="print this text and every group's options")
    ] = False,
) -> None:
    """Simulate a configuration, or with -m a sweep of several.

    A sweep over seeds (seed=0,1,2, or --seeds 3) prints means with 95% intervals, and differences
    on the same seeds. hydra.run.dir=DIR names the run folder; the default is runs/ID, a hash of
    config and inputs.
    hydra/launcher=joblib runs a sweep on all cores. For example:

    testbed run -m policy=contiguous_max,paged arrivals.rate=0.5,1,2 hydra/launcher=joblib
    """
    folders = config_dir or []
    if help:
        return print_help(folders)
    named = [] if shown.config_name is None else [f"--config-name={shown.config_name}"]
    if values or shown.cfg:
        words = served.one.words(overrides, folders)
        return print_config([*named, *words], shown, values=values)
    sweep.check(sensitivity=sensitivity)
    from testbed.experiments.cli.run_launch import Form, noted, run_one

    form = Form(again, sweep.per_seed, json, sensitivity)
    if sweep.is_asked_for:
        from testbed.experiments.cli.sweep_launch import sweep_of  # which one run does not need

        asked = [*named, *overrides, *seed_words(overrides, sweep.seeds)]
        return sweep_of(asked, served.each, folders, replace(form, drawing=sweep.drawing))
    words, notes = noted(served.one, overrides, folders)
    return run_one([*named, *words], form, notes)


def print_config(words: list[str], shown: Shown, *, values: bool) -> None:
    """Print what the words configure: every value with its unit, or the job as Hydra has it."""
    from testbed.experiments.runs.shown_values import job_config, value_lines

    if values:
        print(*value_lines(words), sep="\n")
    else:
        print(job_config(words, resolved=shown.resolve), end="")


def print_help(folders: list[Path]) -> None:
    """Print the parameters, then the options of each group, those of user folders included."""
    from testbed.experiments.cli.app import application
    from testbed.experiments.runs.choice_names import GROUPS, KEYS, names_of

    application.help_print(["run"])
    print("Groups (GROUP=NAME selects an option):")
    for group in GROUPS:
        print(f"  {KEYS.get(group, group)}: {', '.join(names_of(group, folders))}")
    print("testbed list GROUP says what each option is; testbed run --values shows all values.")
