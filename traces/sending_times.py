"""Times at which SGLang's client sent its requests, which its result file lacks.

sglang.benchmark.serving --output-details lists lengths and times of each request, without its
start. With --request-rate inf, its default, the starts follow: all requests are sent in order, each
as soon as fewer than --max-concurrency are on the way.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from math import inf, isinf
from typing import Any

from testbed.core.errors import InputError

SLACK = 0.1  # of the file's duration, which has the end of each stream and a last question besides
SLACK_S = 1.0


def is_of_sglang(run: Mapping[str, Any]) -> bool:
    """True if SGLang's client wrote the result of a run."""
    return "total_output_tokens_retokenized" in run


def sending_times(path: str, run: Mapping[str, Any], served_s: Sequence[float]) -> list[float]:
    """Seconds from the first request to each, by the seconds that each was served. Raises
    InputError for a run at another rate, whose starts are not known, and for one that lasted longer
    or shorter than so.
    """
    given = run.get("request_rate")
    rate = inf if given is None else float(given)
    if not isinf(rate):
        raise InputError(
            key=f"{path}: request_rate",
            value=f"{rate:g}",
            problem="the file does not say when its requests were sent, at random times",
            remedy=(
                "measure with --request-rate inf and --max-concurrency N, or by a client that "
                "writes start times"
            ),
        )
    most = int(run.get("max_concurrency") or len(served_s))
    free_s, starts_s = [0.0] * max(1, most), list[float]()
    heapify(free_s)
    for seconds in served_s:
        starts_s.append(free_s[0])
        heapreplace(free_s, free_s[0] + seconds)
    _check_duration(path, run, max(free_s))
    return starts_s


def _check_duration(path: str, run: Mapping[str, Any], lasted_s: float) -> None:
    duration_s = run.get("duration")
    if duration_s is None or abs(duration_s - lasted_s) <= SLACK_S + SLACK * duration_s:
        return
    raise InputError(
        key=f"{path}: duration",
        value=f"{duration_s:g}",
        problem=(
            f"its requests, {run.get('max_concurrency') or 'all'} at a time, take {lasted_s:g} s"
        ),
        remedy="ttfts and itls are in seconds; the file is not whole, or was changed",
    )
