"""`testbed show`: the charts of a run from its tables; its memory and its timeline from the run
simulated again.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import (
    Picture,
    PlugIns,
    Seconds,
    WholeNumber,
)

MEMORY_MAP = "memory_map.html"
TIMELINE = "timeline.json"

RunFolder = Annotated[
    Path, Parameter(metavar="RUN", help="a folder that `testbed run` has written")
]
From = Annotated[Seconds, Parameter(name="--from", help="from this second on")]
To = Annotated[Seconds, Parameter(name="--to", help="up to this second (default: the end)")]

app = App(name="show", help="Show the charts, the memory or the timeline of a run.")


@app.command
def charts(
    run: RunFolder,
    /,
    *,
    out: Annotated[
        Picture | None,
        Parameter(help="figure to write: .pdf, .png or .svg (default: RUN/charts.png)"),
    ] = None,
) -> None:
    """Draw memory by kind, requests by state and latencies from the tables of a run."""
    from testbed.experiments.cli.output import show
    from testbed.experiments.look.compare.finished_run import read_run
    from testbed.experiments.look.plots import figure_of, save
    from testbed.experiments.look.run_charts import charts_of
    from testbed.experiments.runs.run_folder import CHARTS

    drawn = charts_of(read_run(run.name, run))
    if not drawn:
        raise InputError(
            key=run, problem="has no tables to draw", remedy="run it again with outputs=tables"
        )
    out = out or run / CHARTS
    out.parent.mkdir(parents=True, exist_ok=True)
    save(figure_of(drawn, columns=3), out)
    show(str(out))


@app.command
def memory(
    run: RunFolder,
    /,
    *,
    start: From = 0.0,
    stop: To | None = None,
    engine: Annotated[
        WholeNumber | None, Parameter(help="whose memory, of several replicas; from 0")
    ] = None,
    plug_in: PlugIns | None = None,
    html: Annotated[
        Path | None, Parameter(metavar="FILE", help=f"page to write (default: RUN/{MEMORY_MAP})")
    ] = None,
) -> None:
    """Write the owners of physical blocks over time as an interactive page.

    Simulates the run of a folder again.
    """
    from testbed.core.request import PS
    from testbed.experiments.cli.output import show
    from testbed.experiments.look.memory_map.map_page import page, retrace, title_of
    from testbed.experiments.runs.run_folder import changed_since, complete, read_config
    from testbed.experiments.runs.whole_files import write_text

    part = _interval(start, stop)
    config = read_config(run, plug_in or ())
    trace = retrace(config, *part, engine, complete(run))
    html = html or run / MEMORY_MAP
    html.parent.mkdir(parents=True, exist_ok=True)
    write_text(html, page(trace, title_of(trace, config, engine)))
    show(str(html))
    if trace.num_states > len(trace.frames):
        show(
            f"{len(trace.frames):,} of {trace.num_states:,} states are drawn, at even times, and "
            "what changes between two of them is left out; --from and --to zoom in"
        )
    show(*changed_since(run, config, part, trace.end_ps / PS, "page"))


@app.command
def timeline(
    run: RunFolder,
    /,
    *,
    start: From = 0.0,
    stop: To | None = None,
    plug_in: PlugIns | None = None,
    out: Annotated[
        Path | None,
        Parameter(
            metavar="FILE",
            help=f"file to write (default: RUN/{TIMELINE}); a name in .gz is packed",
        ),
    ] = None,
) -> None:
    """Export the requests, iterations and pool of a run for Perfetto.

    Simulates the run of a folder again.
    """
    from testbed.experiments.cli.output import show
    from testbed.experiments.look.timeline.chrome_trace import trace_of, write_trace
    from testbed.experiments.runs.run_folder import changed_since, read_config

    part = _interval(start, stop)
    config = read_config(run, plug_in or ())
    trace, end_s = trace_of(config, *part)
    show(*changed_since(run, config, part, end_s, "trace"))
    out = out or run / TIMELINE
    out.parent.mkdir(parents=True, exist_ok=True)
    write_trace(out, trace)
    events = len(trace["traceEvents"])
    show(f"{out}: {events:,} events; open it at ui.perfetto.dev or chrome://tracing")


def _interval(start: float, stop: float | None) -> tuple[float, float | None]:
    """[start, stop) in s; stop None means the end of the run."""
    if stop is not None and stop <= start:
        raise InputError(key=f"--from {start:g} --to {stop:g}", problem="is an empty interval")
    return start, stop
