"""Agentic coding sessions (JSONL, plain or gzip): prompt content, think times, sub-agents parallel
to their parent.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows, Turns
from testbed.core.units import Count
from testbed.traces.files import MAX_LEN, json_lines, wrong_count, wrong_time
from testbed.traces.reader import Trace

SESSION_BITS = 32  # a content id consists of its session's number and the id in the file
PARTIAL = 1 << 31  # the first id of partial last blocks of prompts, which no other prompt has
OPTIONAL = ("think_time", "api_time")


class Turn(NamedTuple):
    """One request with its fields of Rows and Turns; `after` counts from the first turn of its
    session.
    """

    prompt_len: int
    output_len: int
    ids: tuple[int, ...]
    after: tuple[int, ...]
    wait_s: float
    answer_s: float


class SessionTurns:
    """The turns of one session, each after those that it waits for."""

    def __init__(self, number: int, session: Mapping[str, Any], max_len: int) -> None:
        self.turns: list[Turn] = []
        self._first_id = number << SESSION_BITS
        self._block_size: int = session["block_size"]
        self._max_len = max_len
        self._partial = count(PARTIAL)
        self._walk(session)

    def _walk(self, session: Mapping[str, Any]) -> None:
        """Add the parent's chain; it waits for sub-agents that ended in time, which start at its
        last answer.
        """
        last, answered_s = tuple[int, ...](), 0.0
        sub_agents: list[
            tuple[float, int]
        ] = []  # when their last turn was answered, and which that is
        for request in session["requests"]:
            if request.get("type") == "subagent":
                wait_s = max(0.0, request["t"] - request["duration_ms"] / 1000 - answered_s)
                end = self._chain(request, last, wait_s)
                sub_agents += [] if end is None else [(request["t"], end)]
                continue
            if self._is_long(request):
                return
            ended = {turn: end_s for end_s, turn in sub_agents if end_s <= request["t"]}
            sub_agents = [chain for chain in sub_agents if chain[0] > request["t"]]
            wait_s = max(0.0, request["t"] - max(answered_s, *ended.values(), 0.0))
            if not ended and "think_time" in request:
                wait_s = request["think_time"]
            last = (self._add(request, (*last, *ended), wait_s),)
            answered_s = request["t"] + request.get("api_time", 0.0)

    def _chain(
        self, session: Mapping[str, Any], after: tuple[int, ...], wait_s: float
    ) -> int | None:
        last = None
        for request in session["requests"]:
            if request.get("type") == "subagent" or self._is_long(request):
                break
            last = self._add(
                request, after, wait_s if last is None else request.get("think_time", 0.0)
            )
            after = (last,)
        return last

    def _add(self, request: Mapping[str, Any], after: tuple[int, ...], wait_s: float) -> int:
        full, rest = divmod(request["in"], self._block_size)
        ids = [*request["hash_ids"][:full], *([next(self._partial)] if rest else [])]
        answer = max(1, request["out"])
        content = tuple(self._first_id + block_id for block_id in ids)
        self.turns.append(
            Turn(request["in"], answer, content, after, wait_s, request.get("api_time", 0.0))
        )
        return len(self.turns) - 1

    def _is_long(self, request: Mapping[str, Any]) -> bool:
        return bool(request["in"] + max(1, request["out"]) >= self._max_len)


class AgentSessions(Trace):
    """Sessions as github.com/callanjfox/kv-cache-tester publishes them, one JSON object a line.

    Every session is a chain of requests: `in` and `out` tokens, `hash_ids` of block_size prompt
    tokens each, `think_time` between the last answer and the request, `api_time` of the recorded
    server, in s. A request of type "subagent" is a separate chain, whose last answer came `t`
    seconds after the session's start.

    Equal ids are equal content only within one session. An answer without tokens (cancelled) counts
    as one token. num_sessions keeps only the first lines. With max_len, a chain ends before its
    first request of max_len tokens or more.
    """

    def __init__(self, path: str, num_sessions: Count | None = None) -> None:
        if num_sessions is not None and num_sessions < 1:
            raise InputError(
                f"trace.num_sessions={num_sessions}: must be at least 1, or null for all"
            )
        self.path = str(path)
        self.num_sessions = num_sessions

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        if num_rows is not None:
            raise InputError(
                f"{self.path}: sessions have no arrival times (choose arrivals=sessions)"
            )
        items = [item for _, item in islice(json_lines(self.path, _problems), self.num_sessions)]
        sizes = sorted({item["block_size"] for item in items})
        if len(sizes) != 1:
            raise InputError(
                f"{self.path}: has block sizes {sizes}: all sessions must have the same"
            )
        limit = MAX_LEN if max_len is None else max_len
        sessions = [SessionTurns(number, item, limit).turns for number, item in enumerate(items)]
        if not any(sessions):
            raise InputError(
                f"{self.path}: no session begins with less than {limit} tokens (raise "
                f"workload.max_len)"
            )
        return joined([turns for turns in sessions if turns], sizes[0])


def joined(sessions: Sequence[Sequence[Turn]], tokens_per_id: int) -> Rows:
    starts = np.cumsum([0, *map(len, sessions)])
    turns = [turn for session in sessions for turn in session]
    prompts, outputs = (np.array([turn[i] for turn in turns], np.int64) for i in (0, 1))
    links = Turns(
        np.repeat(np.arange(len(sessions)), np.diff(starts)),
        [
            tuple(start + position for position in turn.after)
            for start, session in zip(starts.tolist(), sessions, strict=False)
            for turn in session
        ],
        np.array([turn.wait_s for turn in turns], np.float64),
        np.array([turn.answer_s for turn in turns], np.float64),
    )
    return Rows(prompts, outputs, None, [turn.ids for turn in turns], tokens_per_id, turns=links)


def _problems(session: Any) -> Iterator[str | None]:
    if not isinstance(session.get("requests"), list):
        yield "is not a session: an object with a list 'requests'"
    if wrong_count(session, "block_size"):
        yield f"block_size={session.get('block_size')!r}: is not a whole number of tokens"
    for place, request in enumerate(session["requests"], start=1):
        for problem in filter(None, _request_problems(request, session["block_size"])):
            yield f"request {place}: {problem}"


def _request_problems(request: Any, block_size: int) -> Iterator[str | None]:
    if not isinstance(request, dict):
        yield "is not a JSON object"
    elif request.get("type") == "subagent":
        yield wrong_time(request, "t")
        if wrong_time(request, "duration_ms") or not isinstance(request.get("requests"), list):
            yield "a sub-agent needs duration_ms and a list 'requests'"
        for sub_request in request["requests"]:
            yield from (
                f"of its sub-agent, {problem}"
                for problem in _request_problems(sub_request, block_size)
                if problem
            )
    else:
        yield from (
            wrong_time(request, key)
            for key in ("t", *(name for name in OPTIONAL if name in request))
        )
        yield wrong_count(request, "in")
        yield wrong_count(request, "out", least=0)
        yield _wrong_ids(request, block_size)


def _wrong_ids(request: Mapping[str, Any], block_size: int) -> str | None:
    ids = request.get("hash_ids")
    if not isinstance(ids, list) or (
        ids and ({*map(type, ids)} != {int} or min(ids) < 0 or max(ids) > MAX_LEN)
    ):
        return "hash_ids is not a list of whole numbers"
    wanted = request["in"] // block_size
    return (
        None
        if len(ids) >= wanted
        else f"{len(ids)} hash_ids for {wanted} full blocks of {block_size} tokens"
    )
