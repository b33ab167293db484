"""Logs of benchmark clients: `vllm bench serve --save-detailed`, GuideLLM's benchmarks.json, and
aiperf's profile_export.jsonl.

Times are the client's: a request begins when the client sends it, and a token comes when the client
receives it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.aiperf_log import aiperf_items
from testbed.traces.bench_log import is_bench, read_bench
from testbed.traces.client_rows import checked_rows
from testbed.traces.files import read_json_or_lines
from testbed.traces.length_model import Floats

# Names of the same time in GuideLLM's versions, the newest first.
GUIDELLM = (
    ("request_start", "start_time", "request_start_time"),
    ("first_token_iteration", "first_iteration", "first_token_time"),
    ("last_token_iteration", "last_iteration", "last_token_time"),
)


def read_client_log(path: str, benchmark: int | None = None) -> tuple[Rows, Floats, list[str]]:
    """The served requests, their times [num_requests, 3] (s), and remarks on the log.

    benchmark: of a file with several runs the one to read, from 0; None: the only one.

    The times are those of sending, first token and last token. Raises InputError for a file of
    another format, for one that does not list each request, and for one whose requests are not
    those that it counts.
    """
    content = read_json_or_lines(path)
    if isinstance(content, dict) and "benchmarks" in content:
        with _values_of("GuideLLM", path):
            return _guidellm(path, _chosen(path, _benchmarks(path, content), benchmark, "rate"))
    runs = content if isinstance(content, list) else [content]
    if runs and all(isinstance(run, dict) and is_bench(run) for run in runs):
        with _values_of("vllm bench serve", path):
            return read_bench(path, _chosen(path, runs, benchmark, "run"))
    raise InputError(
        key=path,
        problem="lists no requests with their times, as a benchmark client writes them",
        remedy=(
            "of vllm bench serve give the result with --save-result --save-detailed, of aiperf "
            "profile_export.jsonl, of GuideLLM its JSON"
        ),
    )


@contextmanager
def _values_of(client: str, path: str) -> Iterator[None]:
    """A value of another type than the client writes becomes an InputError."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(
            key=path,
            problem=f"a value is not as {client} writes it: {error}",
            remedy="mend or remove its request",
        ) from error


def _benchmarks(path: str, content: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The benchmarks of a GuideLLM file, one for each rate."""
    benchmarks = content["benchmarks"]
    are_runs = isinstance(benchmarks, list) and all(isinstance(item, dict) for item in benchmarks)
    if not are_runs or not benchmarks:
        raise InputError(
            key=path,
            problem="contains 0 benchmarks",
            remedy="give the file of a run that went well",
        )
    return cast(Sequence[Mapping[str, Any]], benchmarks)


def _chosen(
    path: str, runs: Sequence[Mapping[str, Any]], wanted: int | None, each: str
) -> Mapping[str, Any]:
    """The run that is asked for, or the only one; each: what a run of the file is one of."""
    count = len(runs)
    if wanted is None and count > 1:
        raise InputError(
            key=path,
            problem=f"contains {count} benchmarks, one for each {each}{_rates(runs)}",
            remedy=f"give trace.benchmark=0 to {count - 1}, the one to read",
        )
    if (wanted or 0) >= count:
        raise InputError(
            key=f"{path}: trace.benchmark",
            value=wanted,
            problem=f"it contains {count}, which count from 0",
        )
    return runs[wanted or 0]


def _rates(runs: Sequence[Mapping[str, Any]]) -> str:
    """The request rates of vLLM's runs, by which a user knows them; empty if they have none."""
    rates = [run.get("request_rate") for run in runs]
    return f" (request_rate {', '.join(map(str, rates))})" if all(rates) else ""


def _guidellm(path: str, benchmark: Mapping[str, Any]) -> tuple[Rows, Floats, list[str]]:
    """The requests of one benchmark of GuideLLM's benchmarks.json."""
    requests = benchmark.get("requests") or {}
    items = []
    for request in requests.get("successful") or ():
        info = request.get("info") or request.get("scheduler_info") or {}
        timings = {**request, **(info.get("timings") or {})}
        times_s = [
            next((timings[name] for name in names if timings.get(name)), None) for names in GUIDELLM
        ]
        prompt, output = request.get("prompt_tokens"), request.get("output_tokens")
        items.append({"prompt": prompt, "output": output, "times_s": times_s})
    lost = sum(len(requests.get(kind) or ()) for kind in ("errored", "incomplete"))
    return checked_rows(path, items, lost, [])


def read_aiperf(path: str) -> tuple[Rows, Floats, list[str]]:
    """The served requests of aiperf's profile_export.jsonl, as read_client_log gives them."""
    with _values_of("aiperf", path):
        items, num_failed = aiperf_items(path)
        return checked_rows(path, items, num_failed, [])
