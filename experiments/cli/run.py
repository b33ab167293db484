"""`testbed run`: one simulation, or with -m a sweep."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

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
from testbed.experiments.runs.notes import print_notes

app = App(name="run", help_flags=[])  # its own --help also shows the config groups


@Parameter(name="*")
@dataclass(frozen=True)
class Launch:
    """One run, or several in place of one, and the form of the answer."""

    multirun: Annotated[
        bool,
        Parameter(
            name=("--multirun", "-m"),
            help="run every combination of the overrides' comma-separated values",
        ),
    ] = False
    seeds: Seeds | None = None
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
    again: Annotated[bool, Parameter(help="repeat a run whose folder is complete")] = False
    sensitivity: Annotated[
        bool,
        Parameter(
            help="also print the interval of latencies and preemptions: 20 times arrivals moved by "
            "up to 10 ms, and costs by what they were off by if that was measured, else by 3% "
            "up and down; takes some 22 runs more"
        ),
    ] = False
    json: AsJson = False

    @property
    def is_sweep(self) -> bool:
        """True if an option makes a sweep of the run."""
        return self.multirun or self.seeds is not None

    @property
    def columns(self) -> list[str]:
        """The columns that the figure shows; none: the usual ones."""
        return [] if self.metrics is None else self.metrics.split(",")

    def check(self) -> None:
        """Raise InputError for a figure of one run, and for the intervals of several."""
        if self.is_sweep and self.sensitivity:
            raise InputError(
                key="--sensitivity", problem="is of one run", remedy="leave -m and --seeds out"
            )
        if not self.is_sweep and (self.figure or self.metrics):
            raise InputError(
                key="--figure" if self.figure else "--metrics",
                problem="is of a sweep",
                remedy="give -m or --seeds; testbed show charts RUN draws one run",
            )


@Parameter(name="*")
@dataclass(frozen=True)
class Shown:
    """The configuration in place of a run: its values, or as Hydra's options show it."""

    values: Annotated[
        bool, Parameter(help="print every value of this configuration with its unit; run nothing")
    ] = False
    config_name: Annotated[
        str | None,
        Parameter(metavar="NAME", help="the primary config, of a --config-dir (default: run)"),
    ] = None
    cfg: Annotated[
        Literal["job"] | None,
        Parameter(metavar="job", help="print the configuration as Hydra composes it; run nothing"),
    ] = None
    resolve: Annotated[bool, Parameter(help="print it with --cfg without interpolations")] = False


ONE_RUN = Launch()
NOT_SHOWN = Shown()


@app.default
def run(
    *overrides: Override,
    launch: Launch = ONE_RUN,
    config_dir: ConfigFolders | None = None,
    served: ServedCommands = NO_COMMANDS,
    shown: Shown = NOT_SHOWN,
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
    if shown.values or shown.cfg:
        return print_config([*named, *served.one.words(overrides, folders)], shown)
    launch.check()
    if launch.is_sweep:
        from testbed.experiments.cli.sweep_launch import sweep_of  # which one run does not need

        asked = [*named, *overrides, *seed_words(overrides, launch.seeds)]
        return sweep_of(asked, served.each, folders, launch)
    from testbed.experiments.cli.run_launch import run_one

    notes = list[str]()
    words = served.one.words(overrides, folders, notes.append)
    run_one([*named, *words], launch, print_notes(notes))


def print_config(words: list[str], shown: Shown) -> None:
    """Print what the words configure: every value with its unit, or the job as Hydra has it."""
    from testbed.experiments.runs.shown_values import job_config, value_lines

    if shown.values:
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
