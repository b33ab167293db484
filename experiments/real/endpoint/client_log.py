"""A client's log of a workload that a running server has served: `testbed gpu record --url`.

The folder is what `testbed validate` reads: requests.csv has the client's times and, if the
server says them, the arrivals by its clock; meta.json what the server says of itself and counts;
workload.jsonl what is in the prompts, if their contents are known.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import PS, Request, Workload
from testbed.experiments.real.endpoint.address import Address, address_of, fetched, served_model
from testbed.experiments.real.endpoint.client import Answered, Ask, Client
from testbed.experiments.real.endpoint.counters import (
    PREEMPTIONS,
    Counters,
    counters_behind,
    idle_counters,
)
from testbed.experiments.real.vllm_engine.asked import (
    CONTENTS,
    check_new,
    drawn_ids,
    plain_requests,
    token_ids,
    write_contents,
)
from testbed.experiments.runs.whole_files import whole_folder, write_cells, write_json
from testbed.traces.vllm_log import META

REQUESTS = "requests.csv"
SEED = 0
WARM_UP = (16, 128, 512, 1024)  # tokens of prompts that are sent before, and not logged
LATE_S = 0.005  # by which a client that keeps up sends at most
Meta = dict[str, Any]


def record_endpoint(
    url: str, api_key: str | None, model: str | None, workload: Workload, out: Path, limit_s: float
) -> None:
    """Send the workload to a server; `out` is the new folder of its log.

    limit_s: seconds after the last arrival in which all must be answered. Raises InputError for a
    server that does not serve all of the workload, and nothing else meanwhile.
    """
    requests = plain_requests(workload)
    check_new(out, "--out")
    address = address_of(url, api_key)
    about = served_model(address, model)
    check_served(about, requests)
    client = Client(address, about["id"])
    asyncio.run(client.send(warm_up(requests), limit_s))
    before = idle_counters(address)
    asks = [
        Ask(token_ids(request, SEED), request.output_len, request.arrival_ps / PS)
        for request in requests
    ]
    answers = asyncio.run(client.send(asks, limit_s + asks[-1].at_s))
    after = None if before is None else counters_behind(address, before, len(asks))
    meta = {"url": address.url, "model": about["id"], **server_facts(address, before, after)}
    with whole_folder(out, stale=lambda _: True, is_there=lambda: False) as folder:
        write_cells(folder / REQUESTS, columns(requests, answers))
        write_json(folder / META, meta)
        write_contents(folder / CONTENTS, requests)
    print(*lines(out, asks, answers, meta), sep="\n")


def check_served(about: Mapping[str, Any], requests: Sequence[Request]) -> None:
    """Raise InputError for requests beyond the server's context, and for a simulation whose time is
    not the client's.
    """
    longest, limit = max(request.final_len for request in requests), about.get("max_model_len")
    if limit is not None and longest > limit:
        raise InputError(
            key="workload.max_len",
            problem=f"a request has {longest} tokens, and the server takes {limit}",
            remedy=f"workload.max_len={limit}",
        )
    if (speed := about.get("speed", 1)) != 1:
        raise InputError(
            key="--url",
            problem=(
                f"simulates {speed:g} times as fast as real time, so that a client's times are not "
                "the server's"
            ),
            remedy="testbed serve --speed 1",
        )


def warm_up(requests: Sequence[Request]) -> list[Ask]:
    """Prompts that let a server compile and allocate, none longer than the workload's."""
    longest = max(request.prompt_len for request in requests)
    lengths = [length for length in WARM_UP if length <= longest] or [longest]
    return [
        Ask(drawn_ids([SEED, 2, length], length), 1, float(number))
        for number, length in enumerate(lengths)
    ]


def server_facts(address: Address, before: Counters | None, after: Counters | None) -> Meta:
    """Facts and counts that the server reports, without those that it does not."""
    facts: Meta = {}
    if version := fetched(address, "/version"):
        facts["vllm_version"] = json.loads(version).get("version")
    if before is None or after is None:
        return facts
    for name in ("num_gpu_blocks", "block_size"):
        if after.cache.get(name, "").isdigit():
            facts[name] = int(after.cache[name])
    if (preemptions := after.since(PREEMPTIONS, before)) is not None:
        facts["preemptions"] = round(preemptions)
    if (ttft_s := after.mean_ttft_s(before)) is not None:
        facts["server_ttft_s_mean"] = ttft_s
    return facts


def columns(requests: Sequence[Request], answers: Sequence[Answered]) -> dict[str, list[Any]]:
    """The log, a row for each request; an empty cell if the server does not say a time."""
    return {
        "input_tokens": [request.prompt_len for request in requests],
        "output_tokens": [request.output_len for request in requests],
        "arrival_s": [answer.sent_s for answer in answers],
        "first_token_s": [answer.first_token_s for answer in answers],
        "finish_s": [answer.finish_s for answer in answers],
        "server_arrival_s": [answer.server_s for answer in answers],
    }


def lines(out: Path, asks: Sequence[Ask], answers: Sequence[Answered], meta: Meta) -> Iterator[str]:
    """Lines on what was recorded, and how much of it is the client's own."""
    sent_s = np.array([answer.sent_s for answer in answers])
    ttft_ms = 1e3 * (np.array([answer.first_token_s for answer in answers]) - sent_s)
    span_s = max(answer.finish_s for answer in answers)
    preemptions = meta.get("preemptions", "unknown (no /metrics of vLLM's)")
    yield f"{len(answers)} requests in {span_s:.1f} s, preemptions: {preemptions}"
    own_s = meta.get("server_ttft_s_mean")
    own = "" if own_s is None else f"; the server's own mean {1e3 * own_s:.1f} ms"
    yield f"TTFT: mean {ttft_ms.mean():.1f} ms, median {np.median(ttft_ms):.1f} ms{own}"
    yield from _way_lines(sent_s, [answer.server_s for answer in answers])
    late_s = (sent_s - [ask.at_s for ask in asks]).max()
    if late_s > LATE_S:
        yield f"this machine is busy: a request was sent {1e3 * late_s:.0f} ms late"
    yield f"log: {out / REQUESTS} (testbed validate {out / REQUESTS} ...)"


def _way_lines(sent_s: NDArray[np.float64], reached_s: Sequence[float | None]) -> Iterator[str]:
    """The time that requests were on their way, if the server says when they reached its engine.
    Its clock is another one: it is set by the fastest.
    """
    reached = [moment for moment in reached_s if moment is not None]
    if len(reached) == len(sent_s):
        way_ms = 1e3 * (np.array(reached) - sent_s)
        apart_ms = way_ms - way_ms.min()
        yield (
            f"from the client to the engine: median {np.median(apart_ms):.1f} ms, at most "
            f"{apart_ms.max():.1f} ms longer than the fastest, by the server's clock"
        )
