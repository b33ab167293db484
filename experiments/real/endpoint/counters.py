"""Counters of a server, as its /metrics have them in Prometheus's text format."""

import re
import time
from collections.abc import Callable
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.experiments.real.endpoint.address import Address, fetched

LINE = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
PREEMPTIONS, ANSWERED = "vllm:num_preemptions_total", "vllm:request_success_total"
UNFINISHED = ("vllm:num_requests_running", "vllm:num_requests_waiting")
TTFT = "vllm:time_to_first_token_seconds"
CACHE = "vllm:cache_config_info"  # vLLM's gauge whose labels are its CacheConfig
SETTLE_S = 5.0  # in which a server has counted what it has answered
PAUSE_S = 0.1


class Counters(NamedTuple):
    """Sums over the engines of a server. cache: labels of its pool; empty if it says none."""

    sums: dict[str, float]
    cache: dict[str, str]

    def since(self, name: str, before: "Counters") -> float | None:
        """The growth of a counter since then; None if the server has none."""
        if name not in self.sums or name not in before.sums:
            return None
        return self.sums[name] - before.sums[name]

    def mean_ttft_s(self, before: "Counters") -> float | None:
        """The mean time to the first token since then, as the server itself has it."""
        total, count = (self.since(f"{TTFT}_{part}", before) for part in ("sum", "count"))
        return total / count if total is not None and count else None


def read_counters(address: Address) -> Counters | None:
    """The server's counters now; None if it has no /metrics of vLLM's names."""
    text = fetched(address, "/metrics")
    counters = counters_of(text or "")
    return counters if any(name.startswith("vllm:") for name in counters.sums) else None


def counters_of(text: str) -> Counters:
    """The samples of a page, summed over their labels."""
    sums, cache = dict[str, float](), dict[str, str]()
    for name, labels, value in filter(None, map(_sample, text.splitlines())):
        sums[name] = sums.get(name, 0.0) + value
        if name == CACHE:
            cache = dict(LABEL.findall(labels))
    return Counters(sums, cache)


def _sample(line: str) -> tuple[str, str, float] | None:
    if not (match := LINE.match(line)):
        return None
    try:
        return match[1], match[2] or "", float(match[3])
    except ValueError:
        return None


def idle_counters(address: Address) -> Counters | None:
    """The counters of an idle server. Raises InputError for one that has requests of others."""
    counters = _settled(address, _is_idle)
    if counters is not None and not _is_idle(counters):
        raise InputError(
            key="--url",
            value=address.url,
            problem="has requests of others",
            remedy="record a server that no other client uses",
        )
    return counters


def _is_idle(counters: Counters) -> bool:
    return not any(counters.sums.get(name) for name in UNFINISHED)


def counters_behind(address: Address, before: Counters, num_requests: int) -> Counters:
    """The server's counters when it has counted so many requests more. Raises InputError if they
    are others: those of another client were served meanwhile.
    """

    def served(counters: Counters) -> float:
        return counters.since(ANSWERED, before) or 0.0

    counters = _settled(address, lambda now: served(now) >= num_requests)
    if counters is None or (ANSWERED in before.sums and served(counters) != num_requests):
        count = 0 if counters is None else served(counters)
        raise InputError(
            key="--url",
            value=address.url,
            problem=f"counts {count:.0f} requests where {num_requests} were sent",
            remedy="record a server that no other client uses",
        )
    return counters


def _settled(address: Address, is_settled: Callable[[Counters], bool]) -> Counters | None:
    """The counters when they are as expected, else as they are after SETTLE_S seconds."""
    end_s = time.monotonic() + SETTLE_S
    while True:
        counters = read_counters(address)
        if counters is None or is_settled(counters) or time.monotonic() > end_s:
            return counters
        time.sleep(PAUSE_S)
