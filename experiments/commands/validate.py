"""`testbed validate`: replays logs of real servers, and prints the errors of the simulation."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.commands.terminal import plain_table, show
from testbed.experiments.runs.progress import short_names
from testbed.experiments.runs.whole_files import write_cells
from testbed.experiments.validation.deviations import Compared, compare, conclude, draw, over_time
from testbed.experiments.validation.log_replay import notes, replay, server_config
from testbed.experiments.validation.logged_server import Described, described
from testbed.traces.vllm_log import VllmLog
from testbed.trusted import FLAG

HEAD = ("log", "metric", "real", "simulated", "error")
EFFECT = ("log", "metric", "simulated", "what if", "effect")


def main(options: Namespace) -> int:
    """Returns 1 if the error of a metric of a log exceeds --within, else 0."""
    logs, servers, _ = replayed_logs(options, "validate")
    names = dict(
        zip((log.path for log in logs), short_names([Path(log.path) for log in logs]), strict=True)
    )
    rows: list[Compared] = []
    runs = []
    for log, (config, remarks) in zip(logs, servers, strict=True):
        replayed = replay(log, config)
        runs.append((log, config, replayed))
        rows += compare(log.path, log.times, replayed.times)
        show(*(f"{names[log.path]}: {line}" for line in (*remarks, *notes(log, config, replayed))))
    show(plain_table(HEAD, _cells(rows, names)))
    for log, _, replayed in runs:
        show(
            f"\n{names[log.path]}, over time: errors of the means of a quarter of its requests at "
            f"a time",
            plain_table(
                ("arrived", "TTFT", "TPOT", "latency"), over_time(log.times, replayed.times)
            ),
        )
    effects = [
        one
        for text in options.what_if
        for one in _what_if(options, text, logs, [run[2] for run in runs])
    ]
    if effects:
        show(
            "\nwhat if, compared with the simulation of the unchanged server: without the model's "
            "error",
            plain_table(EFFECT, _cells(effects, names)),
        )
    show(*(line for run in runs for line in conclude(*run)))
    if options.csv:
        _write(options.csv, rows, effects)
    if options.figure:
        draw(
            [(names[log.path], log.times, replayed.times) for log, _, replayed in runs],
            options.figure,
        )
        show(f"figure: {options.figure}")
    return verdict(rows, options.within)


def replayed_logs(
    options: Namespace, verb: str
) -> tuple[list[VllmLog], list[Described], list[str]]:
    """The logs, the server of each, and their paths."""
    paths, overrides = split(options, verb)
    logs = [VllmLog(path, options.workload) for path in paths]
    trust = [FLAG] if options.trust_plug_ins else []
    config = server_config([*trust, *overrides], options.config_dir)
    return logs, described(logs, config, overrides, options.blocks_from_log), paths


def split(options: Namespace, verb: str) -> tuple[list[str], list[str]]:
    """Logs, and the values of a config."""
    paths = [text for text in options.arguments if Path(text).is_file() or "=" not in text]
    for path in paths:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such log; give the path of a requests.jsonl, JSON or CSV")
    if not paths:
        raise InputError(f"LOG: is missing (see testbed {verb} --help)")
    if options.workload and len(paths) > 1:
        raise InputError(
            f"--workload: is the workload of a single log ({verb} the others separately)"
        )
    return paths, [text for text in options.arguments if text not in paths]


def _what_if(
    options: Namespace, text: str, logs: list[VllmLog], runs: Sequence[Any]
) -> Iterator[Compared]:
    changed = Namespace(**{**vars(options), "arguments": [*options.arguments, *text.split()]})
    for log, (config, _), baseline in zip(
        logs, replayed_logs(changed, "validate")[1], runs, strict=True
    ):
        other = replay(log, config)
        yield from compare(log.path, baseline.times, other.times, f"{log.path}, {text}")


def _cells(rows: Sequence[Compared], names: dict[str, str]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        path = next(path for path in names if f"{row.log}, ".startswith(f"{path}, "))
        name = names[path] + row.log.removeprefix(path)
        yield (
            name,
            row.metric,
            f"{row.real:.4g}",
            f"{row.simulated:.4g}",
            f"{row.error_percent:+.1f}%",
        )


def _write(path: Path, rows: Sequence[Compared], effects: Sequence[Compared]) -> None:
    whole = [*rows, *effects]
    columns = {
        name: [getattr(row, name) for row in whole] for name in (*rows[0]._fields, "error_percent")
    }
    if effects:
        columns["compared"] = ["with the log"] * len(rows) + ["with the simulation"] * len(effects)
    write_cells(path, columns)


def verdict(rows: Sequence[Compared], within: float | None) -> int:
    """The exit code; prints the metric with the largest error if it exceeds the limit."""
    if within is None:
        return 0
    worst = max(rows, key=lambda row: abs(row.error_percent))
    if abs(worst.error_percent) <= within:
        return 0
    print(
        f"not within {within:g}%: {worst.metric} of {worst.log} is {worst.error_percent:+.1f}% off"
    )
    return 1
