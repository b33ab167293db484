"""Logs of benchmark clients: `vllm bench serve --save-detailed`, GuideLLM's benchmarks.json, and
aiperf's profile_export.jsonl.

Times are the client's: a request begins when the client sends it, and a token comes when the client
receives it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.aiperf_log import aiperf_items
from testbed.traces.files import read_json, wrong_count, wrong_time
from testbed.traces.length_model import Floats
from testbed.traces.reader import columns

LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
# Names of the same time in GuideLLM's versions, the newest first.
GUIDELLM = (
    ("request_start", "start_time", "request_start_time"),
    ("first_token_iteration", "first_iteration", "first_token_time"),
    ("last_token_iteration", "last_iteration", "last_token_time"),
)
RETOKENIZED = 1.02  # chunks of the stream for each output token that the file counts


def read_client_log(path: str, benchmark: int | None = None) -> tuple[Rows, Floats, list[str]]:
    """The served requests, their times [num_requests, 3] (s), and remarks on the log.

    benchmark: of a GuideLLM file with several rates the one to read, from 0; None: the only one.

    The times are those of sending, first token and last token. Raises InputError for a file of
    another format, and for one that does not list each request.
    """
    content = read_json(path)
    if isinstance(content, dict) and "benchmarks" in content:
        with _values_of("GuideLLM", path):
            return _guidellm(path, _chosen(path, content, benchmark))
    if benchmark is not None:
        raise InputError(
            key=path, problem="is no file of GuideLLM's", remedy="leave trace.benchmark out"
        )
    if isinstance(content, dict) and "input_lens" in content:
        with _values_of("vllm bench serve", path):
            return _vllm(path, content)
    raise InputError(
        key=path,
        problem=(
            "neither GuideLLM's benchmarks.json nor a result of vllm bench serve that lists its "
            "requests"
        ),
        remedy="run vllm bench serve with --save-result --save-detailed",
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


def _vllm(path: str, content: Mapping[str, Any]) -> tuple[Rows, Floats, list[str]]:
    """The requests of a result of `vllm bench serve`."""
    absent = [name for name in LISTS if not isinstance(content.get(name), list)]
    if absent:
        raise InputError(
            key=path,
            problem=(
                f"no {', '.join(absent)}; run a newer vllm bench serve with --save-detailed, or "
                "take input_lens and output_lens into a CSV"
            ),
            remedy="trace=csv arrivals=closed_loop",
        )
    lists: list[Sequence[Any]] = [content[name] for name in LISTS]
    if len(set(map(len, lists))) > 1:
        raise InputError(
            key=path,
            problem=f"{', '.join(LISTS)} are not of the same length; the file is not whole",
        )
    errors = content.get("errors") or [""] * len(lists[0])
    items = []
    num_chunks = num_tokens = 0  # chunks in the streams, and output tokens that the file counts
    for prompt, output, ttft, gaps, start, error in zip(*lists, errors, strict=True):
        if error or not output:
            continue
        chunks = 1 + len(gaps)
        num_chunks += chunks
        num_tokens += output
        times_s = [start, start + ttft, start + ttft + sum(gaps)]
        items.append({"prompt": prompt, "output": max(output, chunks), "times_s": times_s})
    remarks = []
    if num_tokens and num_chunks > RETOKENIZED * num_tokens:
        remarks.append(
            f"output_lens were tokenized again: {num_tokens / len(items):.0f} tokens on average, "
            f"where the streams have {num_chunks / len(items):.0f} chunks of at least one; taken: "
            "the chunks"
        )
    return _checked(path, items, len(errors) - len(items), remarks)


def _chosen(path: str, content: Mapping[str, Any], benchmark: int | None) -> Mapping[str, Any]:
    """The benchmark of a GuideLLM file that is asked for, or its only one."""
    benchmarks = content["benchmarks"]
    count = len(benchmarks) if isinstance(benchmarks, list) else 0
    if not count or not all(isinstance(item, dict) for item in benchmarks):
        raise InputError(
            key=path,
            problem="contains 0 benchmarks",
            remedy="give the file of a run that went well",
        )
    if benchmark is None and count > 1:
        raise InputError(
            key=path,
            problem=f"contains {count} benchmarks, one for each rate",
            remedy=f"give trace.benchmark=0 to {count - 1}, the one to read",
        )
    if (benchmark or 0) >= count:
        raise InputError(
            key=f"{path}: trace.benchmark",
            value=benchmark,
            problem=f"it contains {count}, which count from 0",
        )
    chosen: Mapping[str, Any] = benchmarks[benchmark or 0]
    return chosen


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
    return _checked(path, items, lost, [])


def read_aiperf(path: str) -> tuple[Rows, Floats, list[str]]:
    """The served requests of aiperf's profile_export.jsonl, as read_client_log gives them."""
    with _values_of("aiperf", path):
        items, num_failed = aiperf_items(path)
        return _checked(path, items, num_failed, [])


def _checked(
    path: str, items: Sequence[Mapping[str, Any]], num_lost: int, remarks: list[str]
) -> tuple[Rows, Floats, list[str]]:
    """The items as rows and times, with remarks; raises InputError for a wrong item."""
    for number, item in enumerate(items, start=1):
        times = dict(zip(("sent", "first token", "last token"), item["times_s"], strict=True))
        wrong = wrong_count(item, "prompt") or wrong_count(item, "output")
        wrong = wrong or next(filter(None, (wrong_time(times, name) for name in times)), None)
        if wrong or sorted(item["times_s"]) != item["times_s"]:
            raise InputError(
                key=f"{path}, request {number}",
                problem=wrong or "its times are not in order",
                remedy="mend or remove it",
            )
    if not items:
        raise InputError(
            key=path,
            problem="no request was served",
            remedy="give the file of a run that went well",
        )
    if num_lost:
        remarks.append(
            f"{num_lost} of {num_lost + len(items)} requests failed: left out, as if they took no "
            "time"
        )
    rows = Rows(*columns([(item["prompt"], item["output"]) for item in items]))
    return rows, np.array([item["times_s"] for item in items], dtype=np.float64), remarks
