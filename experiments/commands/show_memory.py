"""`testbed show-memory`: writes a map of block ownership over time, as a picture and as an interactive page."""

from pathlib import Path

from testbed.experiments.commands.parser import Parser, add_window, window

NAME = "memory_map"


def parser() -> Parser:
    this = Parser("show-memory", "Simulates the run of a folder again and draws the ownership of its blocks over time.")
    this.add_argument("run", metavar="RUN", type=Path, help="a folder that `testbed run` has written")
    add_window(this, "draw ")
    this.add_argument("--out", metavar="DIR", type=Path, help=f"write {NAME}.png, .pdf and .html here; default: RUN")
    return this


def main(argv: list[str]) -> None:
    """Simulate the run of a folder again with a traced policy, and draw its blocks."""
    options = parser().parse_args(argv)
    from testbed.experiments.commands.console import wide_console
    from testbed.experiments.memory_map.picture import remarks, retrace, write
    from testbed.experiments.runs.progress import spoken
    from testbed.experiments.runs.run_folder import complete, read_config

    start_s, stop_s = window(options)
    config = read_config(options.run)
    with spoken(lambda: "simulating again, step by step"):
        trace = retrace(config, start_s, stop_s)
    out = options.out or options.run
    out.mkdir(parents=True, exist_ok=True)
    console = wide_console()
    for path in write(trace, config, out / NAME):
        console.print(str(path))
    ends_by_itself = stop_s is None and config.window_s is None
    for remark in remarks(trace, complete(options.run) if ends_by_itself else None):
        console.print(remark)
