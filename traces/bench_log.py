"""Results of `vllm bench serve --save-result --save-detailed`, and of `sglang.benchmark.serving
--output-details`: one object a run, with lists that have an entry for each request.

Times are in seconds by the client's clock: start_times when it sent a request, ttfts from then to
the first token, itls between chunks of the answer. The file's counts and averages are compared with
its lists. SGLang's has no start_times: see sending_times.
"""

from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.client_rows import checked_rows
from testbed.traces.files import wrong_count
from testbed.traces.length_model import Floats
from testbed.traces.sending_times import is_of_sglang, sending_times

LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
RETOKENIZED = 1.02  # chunks of the stream for each output token that the file counts
ROUNDING = 0.01  # of a mean that a file gives
SLACK_S = 1.0  # of a duration, which begins before the first request
REBUILT = (
    "the file has no times of sending; taken: all requests in order, as many on the way as "
    "max_concurrency says (request_rate is inf)"
)
CHAT = "openai-chat"  # the backend of vLLM's client for /v1/chat/completions
OF_A_RUN = ("input_lens", "completed")  # a key of every run


def is_bench(content: Mapping[str, Any]) -> bool:
    """True if an object is a run of vLLM's client."""
    return any(key in content for key in OF_A_RUN)


def read_bench(path: str, content: Mapping[str, Any]) -> tuple[Rows, Floats, list[str]]:
    """The served requests of a run, their times [num_requests, 3] (s), and remarks. Raises
    InputError for a run that does not list each request, or whose lists contradict its counts.
    """
    is_rebuilt = is_of_sglang(content) and "start_times" not in content
    if is_rebuilt:
        content = {**content, "start_times": _rebuilt(path, content)}
    lists = _lists(path, content)
    served = _served(path, content, lists)
    first = 0 if _is_chat(content) else 1  # tokens of the first chunk
    items = [
        {
            "prompt": prompt,
            "output": max(output, first + len(gaps)),
            "times_s": [start, start + ttft, start + ttft + sum(gaps)],
        }
        for prompt, output, ttft, gaps, start in served
    ]
    remarks = [*_retokenized(served, first), *([REBUILT] if is_rebuilt else [])]
    rows = checked_rows(path, items, len(lists[0]) - len(items), remarks)
    _check_counts(path, content, served)
    return rows


def _rebuilt(path: str, content: Mapping[str, Any]) -> list[float]:
    """The starts of a run of SGLang's client; nothing for a run that lists no requests."""
    firsts, gaps = content.get("ttfts"), content.get("itls")
    if not isinstance(firsts, list) or not isinstance(gaps, list):
        return []
    served_s = [first + sum(of) for first, of in zip(firsts, gaps, strict=True)]
    return sending_times(path, content, served_s)


def _lists(path: str, content: Mapping[str, Any]) -> list[Sequence[Any]]:
    absent = [name for name in LISTS if not isinstance(content.get(name), list)]
    if "input_lens" in absent:
        raise InputError(
            key=path,
            problem="lists no requests",
            remedy=(
                "run vllm bench serve with --save-result --save-detailed, or SGLang's client with "
                "--output-details"
            ),
        )
    if absent:
        raise InputError(
            key=path,
            problem=f"no {', '.join(absent)}",
            remedy=(
                "run a newer vllm bench serve with --save-detailed, or take input_lens and "
                "output_lens into a CSV of trace=csv arrivals=closed_loop"
            ),
        )
    lists: list[Sequence[Any]] = [content[name] for name in LISTS]
    if len(set(map(len, lists))) > 1:
        raise InputError(
            key=path,
            problem=f"{', '.join(LISTS)} are not of the same length; the file is not whole",
        )
    return lists


def _served(
    path: str, content: Mapping[str, Any], lists: Sequence[Sequence[Any]]
) -> list[list[Any]]:
    """The requests that have tokens and no error: prompt, output, TTFT, gaps, start of each. Raises
    InputError for an output of no number of tokens, which the chunks of its stream would replace.
    """
    errors = content.get("errors") or [""] * len(lists[0])
    served = list[list[Any]]()
    for number, (*row, error) in enumerate(zip(*lists, errors, strict=True), start=1):
        if error:
            continue
        if wrong := wrong_count({"output_lens": row[1]}, "output_lens", 0):
            raise InputError(
                key=f"{path}, request {number}", problem=wrong, remedy="mend or remove it"
            )
        if row[1]:
            served.append(row)
    return served


def _is_chat(content: Mapping[str, Any]) -> bool:
    """True if vLLM's client asked for chats, whose first chunk is the role, without a token."""
    return CHAT in (content.get("backend"), content.get("endpoint_type"))


def _retokenized(served: Sequence[Sequence[Any]], first: int) -> list[str]:
    """A remark if the streams have more chunks than the file counts tokens. first: the tokens of
    the first chunk.
    """
    num_chunks = sum(first + len(gaps) for _, _, _, gaps, _ in served)
    num_tokens = sum(output for _, output, *_ in served)
    if not num_tokens or num_chunks <= RETOKENIZED * num_tokens:
        return []
    return [
        f"output_lens were tokenized again: {num_tokens / len(served):.0f} tokens on average, "
        f"where the streams have {num_chunks / len(served):.0f} chunks of at least one; taken: "
        "the chunks"
    ]


def _check_counts(path: str, content: Mapping[str, Any], served: Sequence[Sequence[Any]]) -> None:
    """Raise InputError if the lists are not those of the run's own counts and means."""
    completed = content.get("completed")
    if completed is not None and completed != len(served):
        raise InputError(
            key=f"{path}: completed",
            value=completed,
            problem=f"{len(served)} requests were served by its lists",
            remedy="the file is not whole, or of several runs",
        )
    mean_ms = content.get("mean_ttft_ms")
    mean_s = sum(ttft for _, _, ttft, _, _ in served) / len(served)
    if mean_ms is not None and not isclose(mean_ms, 1000 * mean_s, rel_tol=ROUNDING):
        raise InputError(
            key=f"{path}: mean_ttft_ms",
            value=f"{mean_ms:g}",
            problem=f"the mean of ttfts is {mean_s:g} s",
            remedy="they are in seconds; the file is not whole, or was changed",
        )
    starts = [start for *_, start in served]
    duration_s = content.get("duration")
    if duration_s is not None and max(starts) - min(starts) > duration_s + SLACK_S:
        raise InputError(
            key=f"{path}: duration",
            value=f"{duration_s:g}",
            problem=f"start_times are {max(starts) - min(starts):g} s apart",
            remedy="they are in seconds; the file is not whole, or was changed",
        )
