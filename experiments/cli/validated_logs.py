"""Logs of real servers, replayed, and the errors of the simulation as tables or JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from testbed.experiments.cli.json_answers import (
    Effect,
    Sensitive,
    ValidationAnswer,
)
from testbed.experiments.cli.output import plain_table, print_json, show
from testbed.experiments.cli.replayed_logs import LogRequest
from testbed.experiments.cli.sensitive_run import NEAR_FULL, is_wide
from testbed.experiments.real.validation.deviations import (
    compare,
    conclude,
    draw,
    over_time,
)
from testbed.experiments.real.validation.log_replay import notes, replay
from testbed.experiments.real.validation.log_sensitivity import PREEMPTIONS, intervals
from testbed.experiments.real.validation.metric_error import MetricError
from testbed.experiments.runs.error_lines import short_names
from testbed.experiments.runs.whole_files import write_cells
from testbed.run.config import RunConfig
from testbed.run.cost_words import costs_in_words
from testbed.run.machine import cost_of
from testbed.study.cost_spread import draws, extremes, rule, rule_of_extremes, spread_of
from testbed.study.sensitivity import Interval

HEAD = ("log", "metric", "real", "simulated", "error")
EFFECT = ("log", "metric", "simulated", "what if", "effect")
SENSITIVE = ("log", "metric", "lowest", "highest", "real", "real is")
LATENCY = "e2e_s_mean"
OVER_TIME = ("arrived", "TTFT", "TPOT", "latency")


def has_tested_error(config: RunConfig) -> bool:
    """True if the server's costs have an error that was tested."""
    return spread_of(cost_of(config)) is not None


class Validation:
    """The logs of a request, replayed on their servers; and once more for each change in
    `what_if`, words of overrides. sensitivity: with the interval of each figure over moved
    arrivals too, and of all costs; otherwise of those that say how far they were off, alone.
    """

    def __init__(
        self, request: LogRequest, what_if: Sequence[str], sensitivity: bool = False
    ) -> None:
        self.logs, self.servers = request.replayed()
        paths = [log.path for log in self.logs]
        self.names = dict(zip(paths, short_names([*map(Path, paths)]), strict=True))
        self.runs = [
            replay(log, config) for log, (config, _) in zip(self.logs, self.servers, strict=True)
        ]
        self.errors = [
            row
            for log, run in zip(self.logs, self.runs, strict=True)
            for row in compare(log.path, log.times, run.times)
        ]
        self.counts = [
            MetricError(log.path, PREEMPTIONS, log.preemptions, run.preemptions)
            for log, run in zip(self.logs, self.runs, strict=True)
            if log.preemptions is not None
        ]
        self.sensitivity = sensitivity
        self.intervals = self._intervals()
        self.effects = {change: list(self._effects(request, change)) for change in what_if}

    def _effects(self, request: LogRequest, change: str) -> Iterator[MetricError]:
        _, servers = request.with_words(*change.split()).replayed()
        for log, (config, _), unchanged in zip(self.logs, servers, self.runs, strict=True):
            changed = replay(log, config)
            yield from compare(f"{log.path}, {change}", unchanged.times, changed.times)

    def _intervals(self) -> dict[tuple[str, str], Interval]:
        """The smallest and the largest simulated value of each metric of each log."""
        runs = zip(self.logs, self.servers, self.runs, strict=True)
        varied = draws if self.sensitivity else extremes
        return {
            (log.path, metric): interval
            for log, (config, _), run in runs
            if self.sensitivity or has_tested_error(config)
            for metric, interval in intervals(log, config, run, varied(config)).items()
        }

    def _rules(self) -> Iterator[str]:
        """The varied values of the intervals, and the reason if one of them is wide."""
        configs = [
            config for config, _ in self.servers if self.sensitivity or has_tested_error(config)
        ]
        if self.sensitivity:
            yield "how sensitive: " + "; ".join(dict.fromkeys(map(rule, configs)))
        else:
            rules = "; ".join(dict.fromkeys(map(rule_of_extremes, configs)))
            yield f"{rules}; --sensitivity: a server's own spread too"
        of_latency = [row for row in self.errors if row.metric == LATENCY]
        pairs = [(self.intervals.get((row.log, LATENCY)), row.simulated) for row in of_latency]
        if any(interval and is_wide(interval, simulated) for interval, simulated in pairs):
            yield NEAR_FULL

    def notes(self) -> Iterator[str]:
        """The costs' source and error, and remarks on each log and its server."""
        yield from dict.fromkeys(f"costs: {costs_in_words(config)}" for config, _ in self.servers)
        for log, (config, remarks), run in zip(self.logs, self.servers, self.runs, strict=True):
            for line in (*remarks, *notes(log, config, run)):
                yield f"{self.names[log.path]}: {line}"

    def conclusions(self) -> Iterator[str]:
        """Remarks on the meaning of the errors."""
        for log, (config, _), run in zip(self.logs, self.servers, self.runs, strict=True):
            of_log = {
                metric: interval
                for (path, metric), interval in self.intervals.items()
                if path == log.path
            }
            yield from conclude(log, config, run, of_log)

    def print_tables(self) -> None:
        """The errors by metric and over time, the effects of the changes, and remarks."""
        show(*self.notes(), plain_table(HEAD, self._cells([*self.errors, *self.counts])))
        if self.intervals:
            show("", *self._rules(), plain_table(SENSITIVE, self._interval_cells()))
        for log, run in zip(self.logs, self.runs, strict=True):
            show(
                f"\n{self.names[log.path]}, over time: errors of the means of a quarter of its "
                "requests at a time",
                plain_table(OVER_TIME, over_time(log.times, run.times)),
            )
        effects = [row for rows in self.effects.values() for row in rows]
        if effects:
            show(
                "\nwhat if, compared with the simulation of the unchanged server: without the "
                "model's error",
                plain_table(EFFECT, self._cells(effects)),
            )
        show(*self.conclusions())

    def print_json(self, within: float | None) -> None:
        """Print what the tables show as JSON."""
        effects = []
        for change, rows in self.effects.items():
            for log in self.logs:
                own = [row for row in rows if row.log == f"{log.path}, {change}"]
                effects += [
                    Effect(
                        log=log.path,
                        change=change,
                        metric=row.metric,
                        unchanged=row.real,
                        changed=row.simulated,
                        effect_percent=row.error_percent,
                    )
                    for row in own
                ]
        remarks = [*self.notes(), *self.conclusions()]
        is_within = None if within is None else self.worst_percent <= within
        errors = [*self.errors, *self.counts]
        sensitive = [
            Sensitive(path, metric, low, high)
            for (path, metric), (low, high) in self.intervals.items()
        ]
        print_json(
            ValidationAnswer(
                errors=errors,
                effects=effects,
                notes=remarks,
                within_percent=within,
                is_within=is_within,
                intervals=sensitive,
            )
        )

    def _cells(self, rows: Sequence[MetricError]) -> Iterator[tuple[str, ...]]:
        for row in rows:
            path = next(path for path in self.names if f"{row.log}, ".startswith(f"{path}, "))
            name = self.names[path] + row.log.removeprefix(path)
            numbers = (f"{row.real:.4g}", f"{row.simulated:.4g}", f"{row.error_percent:+.1f}%")
            yield (name, row.metric, *numbers)

    def _interval_cells(self) -> Iterator[tuple[str, ...]]:
        """The interval of each figure, and whether the measurement is inside."""
        for row in (*self.errors, *self.counts):
            if interval := self.intervals.get((row.log, row.metric)):
                low, high = interval
                inside = "inside" if low <= row.real <= high else "outside"
                name = self.names[row.log]
                yield name, row.metric, f"{low:.4g}", f"{high:.4g}", f"{row.real:.4g}", inside

    def write_csv(self, path: Path) -> None:
        """Write a row per log and metric, then one per change."""
        effects = [row for rows in self.effects.values() for row in rows]
        rows = [*self.errors, *self.counts, *effects]
        names = [column.name for column in fields(MetricError)]
        columns = {name: [getattr(row, name) for row in rows] for name in names}
        if effects:
            columns["compared"] = ["with the log"] * (len(self.errors) + len(self.counts))
            columns["compared"] += ["with the simulation"] * len(effects)
        write_cells(path, columns)

    def draw(self, path: Path) -> None:
        """Draw measured and simulated requests."""
        runs = zip(self.logs, self.runs, strict=True)
        draw([(self.names[log.path], log.times, run.times) for log, run in runs], path)

    @property
    def worst(self) -> MetricError:
        """The metric with the largest error."""
        return max(self.errors, key=lambda row: abs(row.error_percent))

    @property
    def worst_percent(self) -> float:
        """Its error, without sign."""
        return abs(self.worst.error_percent)

    def exit_code(self, within: float | None, is_quiet: bool) -> int:
        """1 if an error exceeds `within` percent, else 0; prints the largest if it does."""
        if within is None or self.worst_percent <= within:
            return 0
        if not is_quiet:
            row = self.worst
            print(
                f"not within {within:g}%: {row.metric} of {row.log} is "
                f"{row.error_percent:+.1f}% off"
            )
        return 1
