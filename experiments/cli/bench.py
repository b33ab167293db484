"""`testbed bench`: the speed of the simulator."""

from typing import Annotated

from cyclopts import Parameter

from testbed.experiments.cli.parameters import AtLeastOne


def bench(
    *,
    lengths: Annotated[
        str | None,
        Parameter(metavar="FILE", help="ShareGPT length file; default: the embedded model"),
    ] = None,
    repeats: Annotated[AtLeastOne, Parameter(help="keep the fastest of N")] = 3,
    requests: Annotated[AtLeastOne, Parameter(help="requests of the long run")] = 1_000_000,
    aisimulate: Annotated[
        str | None,
        Parameter(metavar="PYTHON", help="compare with the AISimulate of this interpreter"),
    ] = None,
) -> None:
    """Measure the speed of the simulator.

    On one core, with all records in memory; each measurement in a process of its own. If AISimulate
    is installed, its speed on the same requests is measured too, in turn with ours.
    """
    from testbed.experiments.cli.output import plain_table, show
    from testbed.experiments.runs import rival_speed
    from testbed.experiments.runs.choice_names import length_file
    from testbed.experiments.runs.simulator_speed import HEAD, measured

    files = (length_file(lengths),) if lengths else ()
    show(plain_table(HEAD, measured(files, requests, repeats)))
    if python := rival_speed.interpreter(aisimulate):
        show(plain_table(rival_speed.HEAD, rival_speed.compared(python, files, repeats)))
