"""Logs of real servers: an engine's requests.jsonl, a benchmark client's JSON, or a CSV."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows
from testbed.core.units import Count
from testbed.traces.aiperf_log import is_aiperf
from testbed.traces.bench_log import is_bench
from testbed.traces.client_logs import read_aiperf, read_client_log
from testbed.traces.files import (
    MAX_LEN,
    SECONDS,
    TOKENS,
    json_lines,
    numbered,
    plain_or_packed,
    read_json,
    read_numbers,
    read_table,
    require,
    unread_key,
    wrong_count,
    wrong_time,
)
from testbed.traces.length_model import Floats
from testbed.traces.reader import FileTrace, columns
from testbed.traces.run_log import is_run, read_run

TIMES = ("queued_ts", "first_token_ts", "last_token_ts")
SIMULATED = "simulated"  # true: of `testbed serve` without a GPU
ARRIVAL = "arrival_time"  # by the client's clock
PREEMPTIONS = "preemptions"  # of each request, or in meta.json of all
ID = "request_id"
KNOWN = (  # what a line of requests.jsonl may have
    ID,
    "input_toks",
    "output_toks",
    ARRIVAL,
    "scheduled_ts",
    *TIMES,
    PREEMPTIONS,
    SIMULATED,
    "cached_toks",
    "session_id",
    "priority",
    *("asked_s", "first_s", "last_s"),  # the client's, of testbed gpu record
)
META = "meta.json"  # what is known of the server, in the log's folder
SESSION = "session_id"
MOST_IN_A_CHUNK = 16  # tokens that one event of a stream may bring, so that they come at one time
SHORTEST_TPOT_S, LONGEST_TPOT_S = 4e-5, 2.0  # of a server, in the median: 25,000 tokens/s at most
LONGEST_WAIT = 10  # before the engine takes a request in, by the time that the whole log takes
TOKENS_PER_HASH = 512  # tokens of a hash id if a workload has no tokens_per_id (as Mooncake's)
TO_REPLAY = "rename one; without times of tokens, trace=csv replays a file's requests alone"


class Times(NamedTuple):
    """Arrival, first token and end of requests in seconds, and their output tokens."""

    arrival_s: Floats
    first_token_s: Floats
    finish_s: Floats
    output_len: Column

    @property
    def ttft_s(self) -> Floats:
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first; requests of one token are left out."""
        several = self.output_len > 1
        return (self.finish_s - self.first_token_s)[several] / (self.output_len[several] - 1)

    @property
    def e2e_s(self) -> Floats:
        return self.finish_s - self.arrival_s

    def take(self, rows: Any) -> "Times":
        return Times(*(column[rows] for column in self))

    def running_at(self, times_s: Floats) -> Column:
        """Requests that had their first token and had not ended, at each time in s."""
        begun, done = np.sort(self.first_token_s), np.sort(self.finish_s)
        return np.searchsorted(begun, times_s, "right") - np.searchsorted(done, times_s, "right")


class VllmLog(FileTrace):
    """Requests that a server logged, in order of arrival, with times since the first arrival (s).

    workload: a file with the prompts' input_tok_ids or hash_ids, line by line as in the log. A
    request arrives when its client sends it. If an engine's log has that time (`arrival_time`, of
    another clock), the clocks are set so that the fastest request is queued at once; else it
    arrives when the engine takes it in (`queued_ts`). benchmark: of a client's file with several
    runs the one to read, from 0.
    """

    def __init__(
        self, path: str, workload: str | None = None, benchmark: Count | None = None
    ) -> None:
        super().__init__(path)
        self.workload = workload
        self.benchmark = benchmark
        self.remarks: list[str] = []
        self._preemptions: int | None = None

    def read(self) -> Rows:
        return self._served[0]

    @property
    def times(self) -> Times:
        return self._served[1]

    @property
    def preemptions(self) -> int | None:
        """The number of preemptions of its requests, by its rows or by the server's counter in
        meta.json; None if neither says it.
        """
        self.read()
        return self.meta.get(PREEMPTIONS) if self._preemptions is None else self._preemptions

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """The contents of meta.json in the log's folder; empty if there is no such file."""
        path = plain_or_packed(Path(self.path).with_name(META))
        contents = read_json(str(path)) if path else None
        if not isinstance(contents, dict):
            return {}
        count = contents.get(PREEMPTIONS, 0)
        if type(count) is not int or count < 0:
            raise InputError(
                key=f"{path}: {PREEMPTIONS}",
                value=repr(count),
                problem="not a whole number of at least 0",
            )
        return contents

    @property
    def is_of_engine(self) -> bool:
        """True if the engine wrote the log, so that it lacks the times of the front end."""
        return self._is_lines and not self._is_aiperf and not self._is_json

    @property
    def _is_lines(self) -> bool:
        return self.path.removesuffix(".gz").endswith(".jsonl")

    @cached_property
    def _is_aiperf(self) -> bool:
        return self._is_lines and is_aiperf(self.path)

    @cached_property
    def _is_json(self) -> bool:
        """True if a benchmark client wrote the log as JSON: an object, or one a line."""
        if self.path.removesuffix(".gz").endswith(".json"):
            return True
        return self._is_lines and is_bench(next(json_lines(self.path))[1])

    @cached_property
    def _served(self) -> tuple[Rows, Times]:
        if self.is_of_engine:
            items = [item for _, item in json_lines(self.path, _problems)]
            _check_ids(self.path, items)
            rows, times = _vllm(self.path, items)
            self._preemptions = _preemptions(items)
            if any(item.get(SIMULATED) for item in items):
                self.remarks = ["simulated by testbed serve: its times are no server's"]
        elif self._is_aiperf:
            rows, times, self.remarks = read_aiperf(self.path)
        elif self._is_json:
            rows, times, self.remarks = read_client_log(self.path, self.benchmark)
        elif is_run(self.path):
            rows, times, self._preemptions, self.remarks = read_run(self.path)
        else:
            rows, times = _csv(self.path)
        if self.benchmark is not None and not self._is_json:
            raise InputError(
                key=self.path, problem="is one run", remedy="leave trace.benchmark out"
            )
        self.remarks += check_times(
            self.path, rows, times, may_buffer=self._is_json or self._is_aiperf
        )
        if self.workload is not None:
            ids, tokens_per_id = _contents(self.workload, rows.prompt_len.tolist())
            rows = replace(rows, prompt_ids=ids, tokens_per_id=tokens_per_id)
        order = np.argsort(times[:, 0], kind="stable")
        arrival, first_token, finish = (times[order] - times[order[0], 0]).T
        rows = replace(rows.take(order), arrival_s=arrival.copy())
        return rows, Times(arrival, first_token, finish, rows.output_len)


def check_times(path: str, rows: Rows, times: Floats, *, may_buffer: bool) -> list[str]:
    """Refuse a log whose times cannot be those of such outputs, or that lists its requests
    twice; what else is odd, in words. times: arrival, first token and finish of each request, s.
    may_buffer: a client's record of its stream, in which several tokens may come at once.
    """
    generating_s = times[:, 2] - times[:, 1]
    at_once = (rows.output_len > MOST_IN_A_CHUNK) & (generating_s == 0)
    if at_once.any() and not (may_buffer and (generating_s > 0).any()):
        row = int(np.argmax(at_once))
        raise InputError(
            key=path,
            problem=(
                f"request {row + 1} of {len(rows)}, whose output is {rows.output_len[row]} tokens, "
                "has its last token when it has its first (are the columns mixed up?)"
            ),
        )
    _check_unit(path, rows, generating_s)
    requests = np.column_stack([rows.prompt_len, rows.output_len, times])
    if len(rows) and np.unique(requests, axis=0, return_counts=True)[1].min() > 1:
        raise InputError(
            key=path, problem="each request is there twice or more", remedy="remove the copies"
        )
    longer = int(np.count_nonzero((rows.output_len == 1) & (generating_s > 0)))
    remarks = []
    if longer:
        have = f"{longer} of {len(rows)} requests have one token"
        remarks.append(f"{have} and end later than with it")
    if at_once.any():
        remarks.append(
            f"{np.count_nonzero(at_once)} of {len(rows)} answers came in one piece, which gives "
            "them a TPOT of 0"
        )
    return remarks


def _check_unit(path: str, rows: Rows, generating_s: Floats) -> None:
    """Raise InputError if the seconds between two tokens are those of no server, so that the times
    are in another unit.
    """
    is_known = (rows.output_len > 1) & (generating_s > 0)
    if not is_known.any():
        return
    tpot_s = float(np.median(generating_s[is_known] / (rows.output_len[is_known] - 1)))
    if not SHORTEST_TPOT_S <= tpot_s <= LONGEST_TPOT_S:
        raise InputError(
            key=path,
            problem=f"{tpot_s:.3g} s between two tokens, in the median: its times are no seconds",
            remedy="give them in seconds",
        )


def _check_ids(path: str, items: list[Any]) -> None:
    """Raise InputError for a log that has a request twice by its id, or those of two runs."""
    seen = set[str]()
    for name in (str(item[ID]) for item in items if item.get(ID) is not None):
        if name in seen:
            raise InputError(
                key=path,
                problem=f"{ID}={name[:40]}: is there twice",
                remedy="remove the copy; each run is a log of its own",
            )
        seen.add(name)


def _preemptions(items: list[Any]) -> int | None:
    if not all(PREEMPTIONS in item for item in items):
        return None
    return sum(int(item[PREEMPTIONS]) for item in items)


def _vllm(path: str, items: list[Any]) -> tuple[Rows, Floats]:
    prompts, outputs = columns([(item["input_toks"], item["output_toks"]) for item in items])
    named = all(SESSION in item for item in items)
    rows = Rows(
        prompts,
        outputs,
        session=numbered([item[SESSION] for item in items]) if named else None,
        priority=np.array([item.get("priority", 0) for item in items], dtype=np.int64),
    )
    times = np.array([[float(item[name]) for name in TIMES] for item in items])
    return rows, _from_client(path, items, times)


def _from_client(path: str, items: list[Any], times: Floats) -> Floats:
    """The times with arrivals by the client's clock if every row has its arrival_time, set so
    that the fastest request is queued at once. Raises InputError for a clock in another unit.

    The engine takes requests in between two iterations: queued_ts lacks the wait before.
    """
    if not all(ARRIVAL in item for item in items) or not items:
        return times
    sent = np.array([float(item[ARRIVAL]) for item in items])
    behind = times[:, 0] - sent
    waited_s = behind.max() - behind.min()
    if waited_s > LONGEST_WAIT * (times[:, 2].max() - times[:, 0].min()):
        raise InputError(
            key=f"{path}: {ARRIVAL}",
            problem=f"a request waits {waited_s:,.0f} s for the engine by it",
            remedy="give it in seconds, as the other times",
        )
    times[:, 0] = sent + behind.min()
    return times


def _csv(path: str) -> tuple[Rows, Floats]:
    counts, names = ("input_tokens", "output_tokens"), ("arrival_s", "first_token_s", "finish_s")
    table = read_table(path, [*counts, *names], missing=TO_REPLAY)
    prompts, outputs = (read_numbers(path, name, table[name], TOKENS) for name in counts)
    times = np.stack([read_numbers(path, name, table[name], SECONDS) for name in names], axis=1)
    in_order = np.diff(times, axis=1).min(axis=1) >= 0
    require(path, names[1], table[names[1]], in_order, f"in order ({', '.join(names)})")
    return Rows(prompts, outputs), times


def _problems(item: Any) -> Iterator[str | None]:
    yield unread_key(item, KNOWN)
    priority = item.get("priority", 0)
    is_class = type(priority) is int and abs(priority) <= MAX_LEN
    if not is_class or type(item.get(SESSION, "")) not in (str, int):
        yield (
            f"priority={item.get('priority')!r}, {SESSION}={item.get(SESSION)!r}: not a whole "
            "number and a name"
        )
    yield from (wrong_count(item, key) for key in ("input_toks", "output_toks"))
    yield from (wrong_time(item, key, least=-float("inf")) for key in TIMES)
    if ARRIVAL in item:
        yield wrong_time(item, ARRIVAL, least=-float("inf"))
    if PREEMPTIONS in item and (type(item[PREEMPTIONS]) is not int or item[PREEMPTIONS] < 0):
        yield f"{PREEMPTIONS}={item[PREEMPTIONS]!r}: not a whole number of at least 0"
    if not item["queued_ts"] <= item["first_token_ts"] <= item["last_token_ts"]:
        yield f"its times are not in order ({', '.join(TIMES)})"


def _contents(path: str, prompt_lens: list[int]) -> tuple[list[tuple[int, ...]], int]:
    """The ids of each prompt in a workload file, and the tokens that an id stands for."""
    items = list(json_lines(path))
    if len(items) != len(prompt_lens):
        raise InputError(
            key=path, problem=f"{len(items)} prompts for {len(prompt_lens)} requests of the log"
        )
    contents: list[tuple[int, ...]] = []
    tokens_per_id = 0
    for (number, item), prompt_len in zip(items, prompt_lens, strict=True):
        if "input_tok_ids" in item:
            ids, tokens = item["input_tok_ids"], 1
        else:
            ids, tokens = item.get("hash_ids"), item.get("tokens_per_id", TOKENS_PER_HASH)
        is_size = type(tokens) is int and tokens >= 1 and tokens_per_id in (0, tokens)
        is_whole = isinstance(ids, list) and {*map(type, ids)} == {int}
        if not is_size or not is_whole or len(ids) != -(-prompt_len // tokens):
            raise InputError(
                key=f"{path}, line {number}",
                problem=f"the log has {prompt_len} token ids, or their hash_ids here",
                remedy="give the workload of this log",
            )
        tokens_per_id = tokens
        contents.append(tuple(ids))
    return contents, tokens_per_id
