"""`testbed validate`: replay logs of real servers, and print how far off the simulation is."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from experiments.commands.arguments.validate import parser
from experiments.commands.console import wide_console
from experiments.runs.whole_files import write_text
from experiments.validation.deviations import Compared, compare, metrics
from experiments.validation.log_replay import Log, Replayed, replay, server_config
from experiments.validation.notes import notes
from experiments.validation.running import compare_running, sampled_at
from testbed.core.errors import InputError


def main(argv: list[str]) -> int:
    """Exit code 1 if --within is given and any metric of any log is further off."""
    options = parser().parse_intermixed_args(argv)
    paths, overrides = split(options.arguments)
    if options.workload and len(paths) > 1:
        raise InputError("--workload is the workload of one log; validate the others by themselves")
    config, console = server_config(overrides), wide_console()
    given = any(text.startswith(("server.num_blocks=", "server.kv_memory_gib")) for text in overrides)
    rows: list[Compared] = []
    pairs = []
    for path in paths:
        log = Log(path, options.workload)
        replayed = replay(log, config)
        rows += compared(log, replayed)
        pairs.append((path, log.times, replayed.times))
        for line in notes(log, config, replayed, given):
            console.print(f"{path}: {line}", highlight=False)
    console.print(shown(rows))
    if options.csv:
        write_text(options.csv, as_csv(rows))
    if options.figure:
        from experiments.validation.figure import Pair, draw  # matplotlib takes a second to import

        draw([Pair(*pair) for pair in pairs], options.figure)
        console.print(f"figure: {options.figure}", highlight=False)
    return verdict(rows, options.within)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Logs, and the values of a config."""
    paths = [text for text in arguments if Path(text).is_file() or "=" not in text]
    overrides = [text for text in arguments if text not in paths]
    for path in paths:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such log; give the path of a requests.jsonl or CSV")
    if not paths:
        raise InputError("no log given; see testbed validate --help")
    return paths, overrides


def compared(log: Log, replayed: Replayed) -> list[Compared]:
    """Every metric that both the log and the simulation have."""
    rows = compare(log.path, metrics(log.times), metrics(replayed.times))
    moments = sampled_at(log.path)
    return rows if moments is None else rows + compare_running(log.path, moments, log.times, replayed.times)


def shown(rows: Sequence[Compared]) -> Table:
    """Real and simulated values beside each other."""
    table = Table("log", "metric", "real", "simulated", "error", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.log, row.metric, f"{row.real:.4g}", f"{row.simulated:.4g}", f"{row.error_percent:+.1f}%")
    return table


def as_csv(rows: Sequence[Compared]) -> str:
    """log,metric,real,simulated,error_percent."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*Compared._fields, "error_percent"])
    table.writerows([*row, row.error_percent] for row in rows)
    return text.getvalue()


def verdict(rows: Sequence[Compared], within: float | None) -> int:
    """The exit code; the worst metric is named where it is not good enough."""
    if within is None:
        return 0
    worst = max(rows, key=lambda row: abs(row.error_percent))
    if abs(worst.error_percent) <= within:
        return 0
    print(f"not within {within:g}%: {worst.metric} of {worst.log} is {worst.error_percent:+.1f}% off")
    return 1
