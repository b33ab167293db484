"""`testbed compare`, `report`, `show-memory` and `timeline`: finished runs as tables, pages and
traces.
"""

from argparse import Namespace
from dataclasses import replace

from testbed.core.errors import InputError
from testbed.experiments.commands.terminal import show, window
from testbed.experiments.runs.progress import spoken
from testbed.experiments.runs.whole_files import write_text

MEMORY_MAP = "memory_map.html"
TIMELINE = "timeline.json"


def compare(options: Namespace) -> None:
    """Print the tables; write the requested files."""
    from testbed.experiments.compare.comparison import compare, tidy
    from testbed.experiments.compare.finished_run import blame, read_runs
    from testbed.experiments.compare.tables import charts, compare_page, texts
    from testbed.experiments.runs.csv_tables import csv_text
    from testbed.experiments.runs.plots import figure_of, save

    comparison = compare(read_runs(options.runs, trusts_plug_ins=options.trust_plug_ins))
    blamed, remarks = blame(comparison.runs)
    comparison = replace(comparison, remarks=[*comparison.remarks, *remarks])
    drawn = list(charts(comparison.runs))
    if options.figure and not drawn:
        raise InputError(
            f"--figure {options.figure}: no run has a table to draw (run them again with "
            f"outputs=full)"
        )
    show(*texts(comparison, blamed))
    if options.csv:
        write_text(options.csv, csv_text(tidy(comparison)))
    if options.figure:
        save(figure_of(drawn), options.figure)
    if options.html:
        write_text(options.html, compare_page(comparison, blamed))
    show(*map(str, filter(None, (options.csv, options.figure, options.html))))


def report(options: Namespace) -> None:
    """Write the page."""
    from testbed.experiments.report.folder_page import folder_page

    out = options.out or options.folders[0] / "report.html"
    write_text(out, folder_page(options.folders))
    print(f"report: {out}")


def show_memory(options: Namespace) -> None:
    """Simulate the run of a folder again with a traced policy, and write the page."""
    from testbed.core.request import PS
    from testbed.experiments.memory_map.map_page import page, retrace, title_of
    from testbed.experiments.runs.run_folder import changed_since, read_config

    part = window(options)
    config = read_config(options.run, trusts_plug_ins=options.trust_plug_ins)
    with spoken(lambda: "simulating again, step by step"):
        trace = retrace(config, *part)
    out = options.out or options.run
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / MEMORY_MAP, page(trace, title_of(trace, config)))
    show(str(out / MEMORY_MAP))
    if trace.num_states > len(trace.frames):
        show(
            f"{len(trace.frames):,} of {trace.num_states:,} states are drawn; --from and --to zoom "
            f"in"
        )
    show(*changed_since(options.run, config, part, trace.end_ps / PS, "page"))


def timeline(options: Namespace) -> None:
    """Simulate the run of a folder again, and write its trace."""
    from testbed.experiments.runs.run_folder import changed_since, read_config
    from testbed.experiments.timeline.chrome_trace import trace_of, write_trace

    part = window(options)
    config = read_config(options.run, trusts_plug_ins=options.trust_plug_ins)
    trace, end_s = trace_of(config, *part)
    show(*changed_since(options.run, config, part, end_s, "trace"))
    out = options.out or options.run / TIMELINE
    out.parent.mkdir(parents=True, exist_ok=True)
    write_trace(out, trace)
    events = len(trace["traceEvents"])
    show(f"{out}: {events:,} events; open it at ui.perfetto.dev or chrome://tracing")
