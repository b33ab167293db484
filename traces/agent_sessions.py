"""Agentic coding sessions (JSONL, plain or gzip): prompts by content, think times, sub-agents beside their parent."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.core.sessions import Turns
from traces.files import MAX_LEN, json_lines
from traces.reader import Trace
from traces.session_turns import Prefixes, SessionTurns, Turn


class AgentSessions(Trace):
    """Sessions as github.com/callanjfox/kv-cache-tester publishes them, one JSON object a line.

    Every session is a chain of requests: `in` and `out` tokens, `hash_ids` that name block_size tokens of the prompt
    each, `think_time` between the last answer and the request, `api_time` that the recorded server took. A request of
    type "subagent" is a chain of its own, whose last answer came `t` seconds after the session's start.

    The ids of a file mean the same within one session only. With share_prefixes the tools and the system prompt, whose
    lengths the file gives, are one text wherever the model and these lengths are the same. An answer of no token
    (cancelled) counts as one token. num_sessions takes the first so many lines only. Where max_len is given, a chain
    ends before its first request of that many tokens.
    """

    def __init__(self, path: str, share_prefixes: bool = False, num_sessions: int | None = None) -> None:
        if num_sessions is not None and num_sessions < 1:
            raise InputError(f"trace.num_sessions is {num_sessions}; it must be at least 1, or null for all")
        self.path = str(path)
        self.share_prefixes = share_prefixes
        self.num_sessions = num_sessions

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """All requests, session after session, with turns and prompt_ids."""
        if num_rows is not None:
            raise InputError(f"{self.path}: sessions have no arrival times of their own; choose arrivals=sessions")
        items = self._items()
        sizes = sorted({item["block_size"] for item in items})
        if len(sizes) != 1:
            raise InputError(f"{self.path}: sessions must have one block_size; the file has {sizes}")
        prefixes = Prefixes() if self.share_prefixes else None
        limit = MAX_LEN if max_len is None else max_len
        sessions = [SessionTurns(number, item, limit, prefixes).turns for number, item in enumerate(items)]
        if not any(sessions):
            raise InputError(f"{self.path}: no session opens with less than {limit} tokens; raise workload.max_len")
        return joined([turns for turns in sessions if turns], sizes[0])

    def _items(self) -> list[Mapping[str, Any]]:
        items = [item for _, item in islice(json_lines(self.path, session_problem), self.num_sessions)]
        if not items:
            raise InputError(f"{self.path}: is empty; give a file with sessions")
        return items


def joined(sessions: Sequence[Sequence[Turn]], tokens_per_id: int) -> Rows:
    """The rows of many sessions, one after another."""
    starts = np.cumsum([0, *map(len, sessions)])
    turns = [turn for session in sessions for turn in session]
    prompts, outputs = (np.array([turn[i] for turn in turns], np.int64) for i in (0, 1))
    links = Turns(
        np.repeat(np.arange(len(sessions)), np.diff(starts)),
        [tuple(start + one for one in turn.after) for start, session in zip(starts.tolist(), sessions, strict=False)
         for turn in session],
        np.array([turn.wait_s for turn in turns], np.float64),
        np.array([turn.answer_s for turn in turns], np.float64),
    )  # fmt: skip
    return Rows(prompts, outputs, None, [turn.ids for turn in turns], tokens_per_id, turns=links)


def session_problem(item: Any) -> str | None:
    """What is wrong with one line, None for nothing."""
    if not isinstance(item, dict) or not isinstance(item.get("requests"), list):
        return "is not a session: an object with a list 'requests'"
    if not _is_count(item.get("block_size"), 1):
        return f"block_size is {item.get('block_size')!r}, not a whole number of tokens"
    for place, request in enumerate(item["requests"], start=1):
        problem = _request_problem(request, item["block_size"])
        if problem:
            return f"request {place}: {problem}"
    return None


def _request_problem(request: Any, block_size: int) -> str | None:
    if not isinstance(request, dict):
        return "is not a JSON object"
    if not _is_time(request.get("t")):
        return f"t is {request.get('t')!r}, not a time in seconds"
    if request.get("type") == "subagent":
        if not _is_time(request.get("duration_ms")) or not isinstance(request.get("requests"), list):
            return "a sub-agent needs duration_ms and a list 'requests'"
        inner = (_request_problem(one, block_size) for one in request["requests"])
        return next((f"of its sub-agent, {problem}" for problem in inner if problem), None)
    for key, least in (("in", 1), ("out", 0)):
        if not _is_count(request.get(key), least):
            return f"{key} is {request.get(key)!r}, not a whole number of tokens, at least {least}"
    for key in ("think_time", "api_time"):
        if key in request and not _is_time(request[key]):
            return f"{key} is {request[key]!r}, not a time in seconds"
    ids = request.get("hash_ids")
    if not isinstance(ids, list) or (ids and ({*map(type, ids)} != {int} or min(ids) < 0 or max(ids) > MAX_LEN)):
        return "hash_ids is not a list of whole numbers"
    wanted = request["in"] // block_size
    return None if len(ids) >= wanted else f"{len(ids)} hash_ids for {wanted} full blocks of {block_size} tokens"


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_LEN


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")
