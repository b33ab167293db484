"""`testbed plan`: the cheapest deployment that keeps an SLO."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.experiments.cli import exit_codes
from testbed.experiments.cli.capacity import SEED, SeedCount, Share, seeds_of
from testbed.experiments.cli.parameters import (
    AboveZero,
    AsJson,
    AtLeastOne,
    ConfigFolders,
    Override,
    Picture,
    check_folder_of,
)
from testbed.experiments.cli.served_command import NO_COMMAND, ServedCommand
from testbed.run.override_words import key_of

if TYPE_CHECKING:
    from testbed.experiments.plan.deployment_plan import Plan, Request
    from testbed.experiments.plan.prices import Rate

RUNS = Path("runs/plan")
Gpus = Annotated[
    AtLeastOne, Parameter(help="only deployments of so many GPUs, all engines together")
]
Prices = Annotated[
    Path,
    Parameter(metavar="FILE", help="rank by your prices of a GPU's hour (TOML), not GPU hours"),
]
Precision = Annotated[
    AboveZero, Parameter(metavar="P", help="highest rates are known to a factor of 1 + P")
]
Everything = Annotated[bool, Parameter(help="simulate every deployment that fits: slower")]
Runs = Annotated[Path, Parameter(metavar="DIR", help="folders of the simulated runs")]
Page = Annotated[Path, Parameter(metavar="FILE", help="write one page; its rows open their runs")]
Sensitivity = Annotated[
    bool,
    Parameter(
        help="also say how far costs, and arrivals moved by up to 10 ms, move the answer of the "
        "cheapest deployment, as capacity --sensitivity does"
    ),
]
Fronts = Annotated[Picture, Parameter(help="draw the Pareto fronts")]


@Parameter(name="*")
@dataclass(frozen=True)
class Search:
    """The deployments that are searched, and how finely."""

    gpus: Gpus | None = None
    prices: Prices | None = None
    seeds: SeedCount | None = None
    share: Share = 0.9
    precision: Precision = 0.05
    all: Everything = False

    def request(self, words: list[str], served: ServedCommand, runs: Path) -> "Request":
        """The request for a plan, of these words and a server's command."""
        from testbed.experiments.plan.deployment_plan import Request

        return Request(
            tuple(word for word in words if key_of(word) != SEED),
            self.share,
            tuple(seeds_of(words, self.seeds)),
            self.precision,
            self.gpus,
            _rate(self.prices),
            runs,
            everything=self.all,
            command=served,
        )


@Parameter(name="*")
@dataclass(frozen=True)
class Written:
    """The folder of runs, and the files that are written."""

    runs: Runs = RUNS
    html: Page | None = None
    figure: Fronts | None = None


USUAL_SEARCH, NO_FILES = Search(), Written()


def plan(
    *overrides: Annotated[Override, Parameter(required=True)],
    search: Search = USUAL_SEARCH,
    config_dir: ConfigFolders | None = None,
    served: ServedCommand = NO_COMMAND,
    written: Written = NO_FILES,
    sensitivity: Sensitivity = False,
    json: AsJson = False,
) -> int:
    """Find the cheapest deployment that keeps an SLO.

    A deployment is a combination of the overrides' comma-separated values. slo.ttft_s=... (s to the
    first token), slo.tpot_s=... (s per later token), slo.itl_s=... (s between two tokens) or
    slo.e2e_s=... (s to the last token) are among the overrides; a request meets all of them. With
    arrivals.rate=..., or arrivals without a rate, it ranks what keeps the SLO at that load; else it
    finds each deployment's highest rate and ranks by the cost of a request. Deployments that
    arithmetic excludes are not simulated. Complete runs are read, so the same line continues a
    stopped plan; hydra/launcher=joblib, ray or submitit_slurm distributes the runs. For example:

    testbed plan model=llama-3.1-8b gpu=h100-80gb,l40s replicas=1,2 slo.ttft_s=1 arrivals.rate=8

    testbed plan --from-vllm "vllm serve Qwen/Qwen3-8B" gpu=h100-80gb server.num_gpus=1,2
    replicas=1,2 --gpus 2 slo.ttft_s=1 arrivals.rate=8
    """
    from testbed.experiments.plan.deployment_plan import planned

    served.check()
    check_folder_of(written.figure, written.html)
    words = NO_COMMAND.words(overrides, config_dir or [])
    answer = planned(search.request(words, served, written.runs), _report)
    lines = _lines(answer, sensitivity=sensitivity)
    _write(answer, written)
    if json:
        _print_json(answer, lines)
    else:
        _show(answer, lines, written)
    return exit_codes.ANSWERED if answer.ranked else exit_codes.NO


def _lines(answer: "Plan", *, sensitivity: bool) -> list[str]:
    """Lines of the question and its answer, with its sensitivity if asked."""
    from testbed.experiments.plan.shown import lines_of

    if not sensitivity:
        return lines_of(answer)
    from testbed.experiments.plan.sensitive import sensitive_lines

    return [*lines_of(answer), *sensitive_lines(answer)]


def _print_json(answer: "Plan", lines: list[str]) -> None:
    from testbed.experiments.cli.output import print_json
    from testbed.experiments.plan.json_answer import plan_answer

    print_json(plan_answer(answer, lines))


def _show(answer: "Plan", lines: list[str], written: Written) -> None:
    """Print the lines and the tables, and where the files are."""
    from testbed.experiments.cli.output import plain_table, show
    from testbed.experiments.plan.shown import shortened, tables_of

    show(*lines)
    for title, head, rows in tables_of(answer):
        show("", title, plain_table(head, shortened(head, rows)))
    show("", f"run: a folder of {written.runs}, by the beginning of its name")
    show(*map(str, filter(None, (written.figure, written.html))))


def _rate(prices: Path | None) -> "Rate":
    from testbed.experiments.plan.prices import GpuHours, read_prices

    return GpuHours() if prices is None else read_prices(prices)


def _write(answer: "Plan", written: Written) -> None:
    """Write the files that are asked for, and with the page the reports that its rows open."""
    from testbed.experiments.look.plots import figure_of, save
    from testbed.experiments.plan.reports import write_reports
    from testbed.experiments.plan.shown import chart_of, page_of
    from testbed.experiments.runs.whole_files import write_text

    if written.figure:
        save(figure_of([chart_of(answer)], columns=1), written.figure)
    if written.html:
        write_reports(answer, written.runs)
        write_text(written.html, page_of(answer, written.html, written.runs))


def _report(text: str) -> None:
    """Print a round at once, since the whole plan may take minutes."""
    print(text, file=sys.stderr, flush=True)
