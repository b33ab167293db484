"""Logs of the benchmark client aiperf: profile_export.jsonl, a line for each request."""

from collections.abc import Iterator, Mapping
from typing import Any

from testbed.traces.files import json_lines

PHASE = "profiling"  # requests that warm the server up are of another
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
FIRST, WHOLE = "time_to_first_token", "request_latency"
# The server's own counts of tokens, which its memory holds, before the client's
PROMPT = ("usage_prompt_tokens", "input_sequence_length")
OUTPUT = ("usage_completion_tokens", "output_sequence_length")


def is_aiperf(path: str) -> bool:
    """True if the first line of a file of JSON lines is of aiperf's form."""
    _, item = next(json_lines(path))
    return "metadata" in item and "metrics" in item


def aiperf_items(path: str) -> tuple[list[dict[str, Any]], int]:
    """The served requests of the measured phase, with their lengths in tokens and times in s, and
    how many failed.

    Raises:
        InputError: a line is not as aiperf writes it, or of a run without streaming.
    """
    items, num_failed = list[dict[str, Any]](), 0
    for _, line in json_lines(path, _problems):
        if line["metadata"].get("benchmark_phase", PHASE) != PHASE:
            continue
        if line.get("error") or line["metadata"].get("was_cancelled"):
            num_failed += 1
            continue
        metrics = line["metrics"]
        start_s = line["metadata"]["request_start_ns"] / 1e9
        times_s = [start_s, *(start_s + _seconds(metrics[name]) for name in (FIRST, WHOLE))]
        prompt, output = (_count(metrics, names) for names in (PROMPT, OUTPUT))
        items.append({"prompt": prompt, "output": output, "times_s": times_s})
    return items, num_failed


def _seconds(metric: Mapping[str, Any]) -> float:
    return float(metric["value"]) * SECONDS[metric["unit"]]


def _count(metrics: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((metrics[name].get("value") for name in names if name in metrics), None)


def _problems(line: Any) -> Iterator[str | None]:
    metadata, metrics = line.get("metadata"), line.get("metrics")
    if not isinstance(metadata, dict) or not isinstance(metrics, dict):
        yield "is not a request of aiperf's: metadata and metrics"
    if type(metadata.get("request_start_ns")) is not int:
        yield f"request_start_ns={metadata.get('request_start_ns')!r}: is not a time in ns"
    if line.get("error") or metadata.get("was_cancelled"):
        return
    yield from (_wrong_time(name, metrics.get(name)) for name in (FIRST, WHOLE))


def _wrong_time(name: str, metric: Any) -> str | None:
    if metric is None:
        return f"no {name} (run aiperf with --streaming)"
    is_metric = isinstance(metric, dict) and type(metric.get("value")) in (int, float)
    if is_metric and metric.get("unit") in SECONDS:
        return None
    return f"{name}={metric!r}: is not a value in one of {', '.join(SECONDS)}"
