"""Errors of a log beside those that the same kind of costs had when they were tested."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from testbed.experiments.cli.sensitive_run import is_wide
from testbed.experiments.real.validation.logged_server import differences, lacks_hits
from testbed.experiments.real.validation.metric_error import MetricError
from testbed.run.config import RunConfig
from testbed.run.cost_words import tested_percents
from testbed.run.machine import VLLMS, cost_of
from testbed.study.sensitivity import Interval
from testbed.traces.vllm_log import VllmLog

LATENCY = "e2e_s_mean"
MEANS = {"TTFT": "ttft_s_mean", "TPOT": "tpot_s_mean", "latency": LATENCY}
FEW = 0.05  # of the tested predictions, that may be further off than an error that is beyond them
HITS = (
    "hits in the server's prefix cache, which are not simulated without the prompts' contents "
    "(--workload)"
)
NEAR_FULL = (
    "a load near the one at which the server is full, where equal runs of it differ as much (the "
    "intervals above have these errors inside)"
)
UNKNOWN = (
    "another GPU or host than those of the costs{of_host}, other work on it, or options of the "
    "log's server that its command here lacks: its start-up log has them{of_options}"
)
OF_VLLM = {
    "of_host": " (`testbed gpu calibrate --system vllm` measures yours)",
    "of_options": " (release, --enforce-eager, --quantization)",
}
OF_OTHERS = {"of_host": "", "of_options": ""}


def beyond_tested(
    log: VllmLog,
    config: RunConfig,
    rows: Sequence[MetricError],
    intervals: Mapping[str, Interval],
) -> Iterator[str]:
    """A line for each mean that is further off than nearly all predictions by which such costs were
    tested, then the likely causes. rows: of the log. intervals: of its simulated metrics.
    """
    tested = tested_percents(cost_of(config), config.model, config.server)
    of_metric = {row.metric: row for row in rows}
    found = {
        name: of_metric[metric]
        for name, metric in MEANS.items()
        if metric in of_metric and _is_beyond(_percent(of_metric[metric]), tested.get(name, ()))
    }
    if not found:
        return
    words = (
        f"{name} is {_percent(row):.0f}% off, {_rank(_percent(row), tested[name])}"
        for name, row in found.items()
    )
    yield f"  the tested error of these costs: {'; '.join(words)}"
    known = _known_causes(log, config, [*found.values()])
    latency = of_metric.get(LATENCY)
    near_full = latency is not None and _is_near_full(latency, found.values(), intervals)
    advice = OF_VLLM if config.scheduler.name in VLLMS else OF_OTHERS
    causes = [*known, NEAR_FULL if near_full else UNKNOWN.format(**advice)]
    yield f"  likely causes: {'; '.join(causes)}"


def _known_causes(log: VllmLog, config: RunConfig, rows: Sequence[MetricError]) -> Iterator[str]:
    """Differences from the log's server that its folder and the simulation know. Hits make a server
    faster, so they explain no mean that is simulated too short.
    """
    if found := ", ".join(map(str, differences(log, config))):
        yield f"the log's options differ: {found}"
    if lacks_hits(log, config) and any(row.error_percent > 0 for row in rows):
        yield HITS


def _is_near_full(
    latency: MetricError, rows: Iterable[MetricError], intervals: Mapping[str, Interval]
) -> bool:
    """True if the latency's interval is wide, and each of these rows inside its own."""
    interval = intervals.get(LATENCY)
    if interval is None or not is_wide(interval, latency.simulated):
        return False
    return all(_is_inside(row, intervals.get(row.metric)) for row in rows)


def _is_inside(row: MetricError, interval: Interval | None) -> bool:
    return interval is not None and interval[0] <= row.real <= interval[1]


def _percent(row: MetricError) -> float:
    return abs(row.error_percent)


def _is_beyond(error: float, tested: Sequence[float]) -> bool:
    further = sum(other > error for other in tested)
    return bool(tested) and further <= FEW * len(tested)


def _rank(error: float, tested: Sequence[float]) -> str:
    """The place of an error among those of the tests."""
    nearer = sum(other <= error for other in tested)
    which = f"all {nearer}" if nearer == len(tested) else f"{nearer} of {len(tested)}"
    spread = f"median {median(tested):.0f}%, largest {max(tested):.0f}%"
    return f"further than {which} predictions that tested them ({spread})"
