"""`testbed show-memory`: writes a map of block ownership over time, as an interactive page."""

from pathlib import Path

from testbed.experiments.commands.parser import Parser, add_window, window

NAME = "memory_map.html"


def main(argv: list[str]) -> None:
    """Simulate the run of a folder again with a traced policy, and write the page."""
    this = Parser("show-memory", "Simulates the run of a folder again and shows the owners of its blocks over time.")
    this.add_argument("run", metavar="RUN", type=Path, help="a folder that `testbed run` has written")
    add_window(this, "show ")
    this.add_argument("--out", metavar="DIR", type=Path, help=f"write {NAME} here; default: RUN")
    options = this.parse_args(argv)
    from testbed.experiments.commands.console import wide_console
    from testbed.experiments.memory_map.map_page import page, remarks, retrace, title_of
    from testbed.experiments.runs.progress import spoken
    from testbed.experiments.runs.run_folder import complete, read_config
    from testbed.experiments.runs.whole_files import write_text

    start_s, stop_s = window(options)
    config = read_config(options.run)
    with spoken(lambda: "simulating again, step by step"):
        trace = retrace(config, start_s, stop_s)
    out = options.out or options.run
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / NAME, page(trace, title_of(trace, config)))
    console = wide_console()
    console.print(str(out / NAME))
    ends_by_itself = stop_s is None and config.window_s is None
    for remark in remarks(trace, complete(options.run) if ends_by_itself else None):
        console.print(remark)
