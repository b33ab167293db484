"""`testbed timeline`: exports a run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.experiments.commands.parser import Parser, add_window, window

NAME = "timeline.json"


def main(argv: list[str]) -> None:
    """Simulate the run of a folder again, and write its trace."""
    this = Parser(
        "timeline", "Simulates the run of a folder again, and exports requests, iterations and the pool as a trace."
    )
    this.add_argument("run", metavar="RUN", type=Path, help="a folder that `testbed run` has written")
    add_window(this)
    this.add_argument("--out", metavar="FILE", type=Path, help=f"default: RUN/{NAME}; a name in .gz is packed")
    options = this.parse_args(argv)
    from testbed.experiments.commands.console import wide_console
    from testbed.experiments.timeline.chrome_trace import write_trace

    console = wide_console()
    trace = timeline(options.run, *window(options), say=console.print)
    out = options.out or options.run / NAME
    out.parent.mkdir(parents=True, exist_ok=True)
    write_trace(out, trace)
    events = len(trace["traceEvents"])
    console.print(f"{out}: {events:,} events; open it at ui.perfetto.dev or chrome://tracing")


def timeline(
    folder: Path, start_s: float = 0.0, stop_s: float | None = None, say: Callable[[str], object] = str
) -> dict[str, Any]:
    """The trace of a run folder's config, from start_s to stop_s or the end, in seconds; `say` receives remarks."""
    from testbed.experiments.runs.run_folder import changed_since, complete, read_config
    from testbed.experiments.timeline.chrome_trace import trace_of

    config = read_config(folder)
    trace, end_s = trace_of(config, start_s, stop_s)
    if stop_s is None and config.window_s is None:
        for remark in changed_since(complete(folder), end_s, "trace"):
            say(remark)
    return trace
