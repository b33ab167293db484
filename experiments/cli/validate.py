"""`testbed validate`: the simulation against measurements of real servers and GPUs."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from testbed.experiments.cli.parameters import AboveZero, AsJson
from testbed.experiments.cli.replayed_logs import LogConfigFolder, LogWord, Workload
from testbed.experiments.cli.served_command import NO_COMMAND, ServedCommand

COMMANDS = ("costs", "sweeps")

app = App(name="validate", help="Compare the simulation with measurements.")

WhatIf = Annotated[
    list[str] | None,
    Parameter(
        metavar="'KEY=VALUE ...'",
        help="compare the simulated server with one of these values; may be given again",
    ),
]
ErrorsCsv = Annotated[Path | None, Parameter(metavar="OUT", help="write a row per log and metric")]
LogsFigure = Annotated[
    Path | None,
    Parameter(
        metavar="FILE",
        help="running requests over time, TTFT and TPOT, and each request's predicted against "
        "measured latency",
    ),
]
Sensitivity = Annotated[
    bool,
    Parameter(
        help="print each figure's interval: 20 times arrivals moved by up to 10 ms, and costs by "
        "what they were off by if that was measured, else all 3% up and down (without this: costs "
        "alone, if that was measured)"
    ),
]
Within = Annotated[
    AboveZero | None,
    Parameter(metavar="PERCENT", help="exit code 1 if an error exceeds PERCENT"),
]
Measurements = Annotated[
    Path,
    Parameter(
        name="FOLDER",
        help="others' measurements, as testbed import profile reads them: AIConfigurator's "
        "systems/data/GPU, LLMServingSim's tpN",
    ),
]
CostsOut = Annotated[
    Path | None, Parameter(metavar="FILE", help="write a row for each profile and way")
]


@app.default
def logs(
    *words: LogWord,
    workload: Workload | None = None,
    config_dir: LogConfigFolder | None = None,
    served: ServedCommand = NO_COMMAND,
    what_if: WhatIf = None,
    csv: ErrorsCsv = None,
    figure: LogsFigure = None,
    sensitivity: Sensitivity = False,
    within: Within = None,
    json: AsJson = False,
) -> int:
    """Replay logs of real servers and print the errors of the simulation; or a COMMAND below.

    A log whose name is a command's is written ./NAME.
    """
    from testbed.experiments.cli.replayed_logs import LogRequest
    from testbed.experiments.cli.validated_logs import Validation

    request = LogRequest("validate", words, workload, config_dir, COMMANDS, served)
    validation = Validation(request, what_if or [], sensitivity)
    if json:
        validation.print_json(within)
    else:
        validation.print_tables()
    if csv:
        validation.write_csv(csv)
    if figure:
        validation.draw(figure)
        if not json:
            print(f"figure: {figure}")
    return validation.exit_code(within, is_quiet=json)


@app.command
def costs(*folders: Measurements, out: CostsOut = None) -> None:
    """Leave each profile out and predict it from the others.

    By every way that finds costs: the errors that a run's first line quotes.
    """
    from testbed.experiments.cli.output import plain_table, show
    from testbed.experiments.runs.whole_files import write_text
    from testbed.experiments.studies.left_out import HEAD, error_rows, left_out_table

    table = left_out_table(folders)
    if out:
        write_text(out, table.to_csv(index=False))
    head = "each profile left out and predicted from the others: median error in percent (largest)"
    show(head, plain_table(HEAD, error_rows(table)))


SweptFolder = Annotated[
    Path, Parameter(name="FOLDER", help="with a steps.csv of logged iterations, and its facts.json")
]


OtherProfile = Annotated[
    str | None,
    Parameter(
        metavar="PROFILE",
        help="another host's, in place of what the sweeps themselves give: a file, or a name that "
        "ships",
    ),
]


@app.command
def sweeps(
    *folders: SweptFolder,
    model: Annotated[str, Parameter(metavar="NAME", help="a model's name, or its config.json")],
    profile: OtherProfile = None,
) -> None:
    """Predict the iterations of a vLLM's sweeps at sizes of batch that are left out.

    Each number of decodes in turn: what a profile's interval rests on. Beside the profile's form
    are those that it replaced, and how far repeats of the same kind are from each other.
    """
    from testbed.cost.profile import read_profile
    from testbed.experiments.cli.output import plain_table, show
    from testbed.experiments.real.importers.known_shapes import model_named
    from testbed.experiments.real.vllm_engine.calibrate_vllm import swept_machine
    from testbed.experiments.real.vllm_engine.left_out_sizes import HEAD, table, table_of

    steps, machine = swept_machine(folders, model_named(model))
    rows = (
        table(steps, machine)
        if profile is None
        else table_of(read_profile(profile), steps, machine)
    )
    show(plain_table(HEAD, list(rows)))
