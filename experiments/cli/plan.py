"""`testbed plan`: the cheapest deployment that keeps an SLO."""

import sys
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
    from testbed.experiments.plan.deployment_plan import Plan
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


def plan(
    *overrides: Annotated[Override, Parameter(required=True)],
    gpus: Gpus | None = None,
    prices: Prices | None = None,
    seeds: SeedCount | None = None,
    share: Share = 0.9,
    precision: Precision = 0.05,
    all: Everything = False,
    config_dir: ConfigFolders | None = None,
    served: ServedCommand = NO_COMMAND,
    runs: Runs = RUNS,
    html: Page | None = None,
    figure: Fronts | None = None,
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
    from testbed.experiments.plan.deployment_plan import Request, planned

    served.check()
    check_folder_of(figure, html)
    words = NO_COMMAND.words(overrides, config_dir or [])
    unseeded = tuple(word for word in words if key_of(word) != SEED)
    numbers, rate = tuple(seeds_of(words, seeds)), _rate(prices)
    request = Request(
        unseeded, share, numbers, precision, gpus, rate, runs, everything=all, command=served
    )
    answer = planned(request, _report)
    lines = _lines(answer, sensitivity=sensitivity)
    _write(answer, html, figure, runs)
    if json:
        _print_json(answer, lines)
    else:
        _show(answer, lines, runs, figure, html)
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


def _show(answer: "Plan", lines: list[str], runs: Path, *files: Path | None) -> None:
    """Print the lines and the tables, and where the files are."""
    from testbed.experiments.cli.output import plain_table, show
    from testbed.experiments.plan.shown import shortened, tables_of

    show(*lines)
    for title, head, rows in tables_of(answer):
        show("", title, plain_table(head, shortened(head, rows)))
    show("", f"run: a folder of {runs}, by the beginning of its name")
    show(*map(str, filter(None, files)))


def _rate(prices: Path | None) -> "Rate":
    from testbed.experiments.plan.prices import GpuHours, read_prices

    return GpuHours() if prices is None else read_prices(prices)


def _write(answer: "Plan", html: Path | None, figure: Path | None, runs: Path) -> None:
    """Write the files that are asked for, and with the page the reports that its rows open."""
    from testbed.experiments.look.plots import figure_of, save
    from testbed.experiments.plan.reports import write_reports
    from testbed.experiments.plan.shown import chart_of, page_of
    from testbed.experiments.runs.whole_files import write_text

    if figure:
        save(figure_of([chart_of(answer)], columns=1), figure)
    if html:
        write_reports(answer, runs)
        write_text(html, page_of(answer, html, runs))


def _report(text: str) -> None:
    """Print a round at once, since the whole plan may take minutes."""
    print(text, file=sys.stderr, flush=True)
