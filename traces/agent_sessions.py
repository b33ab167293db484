"""Agentic coding sessions (JSONL, plain or gzip) with contents, think times and sub-agents."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows, Turns
from testbed.core.units import Count
from testbed.traces.files import MAX_LEN, json_lines, unread_key, wrong_count, wrong_time
from testbed.traces.reader import Trace

SESSION_BITS = 32  # a content id is its session's number, followed by 32 bits of the file's id
PARTIAL = 1 << 31  # the first id of partial last blocks, which are unique to their prompt
OPTIONAL = ("think_time", "api_time")
# Columns of the format; the models, types of content, sums and the recorded TTFT are not read.
AGENT = ("models", "tool_tokens", "system_tokens", "requests")
OF_SESSION = ("id", "block_size", "hash_id_scope", "totals", *AGENT)
OF_SUBAGENT = (
    "t",
    "type",
    "agent_id",
    "subagent_type",
    "duration_ms",
    "total_tokens",
    "tool_use_count",
    "status",
    *AGENT,
)
OF_REQUEST = (
    "t",
    "type",
    "model",
    "in",
    "out",
    "hash_ids",
    "input_types",
    "output_types",
    "stop",
    "ttft",
    *OPTIONAL,
)


class Turn(NamedTuple):
    """One request with its fields of Rows and Turns; `after` are places within its session."""

    prompt_len: int
    output_len: int
    ids: tuple[int, ...]
    after: tuple[int, ...]
    wait_s: float
    answer_s: float


class SessionTurns:
    """The turns of one session, each after those that it waits for."""

    def __init__(
        self, number: int, session: Mapping[str, Any], max_len: int, *, shares: bool = False
    ) -> None:
        self.turns: list[Turn] = []
        self._first_id = number << SESSION_BITS
        self._first_shared_id = 0 if shares else self._first_id
        self._block_size: int = session["block_size"]
        self._max_len = max_len
        self._partial = count(PARTIAL)
        self._walk(session)

    def _walk(self, session: Mapping[str, Any]) -> None:
        """Add the turns of the parent and of its sub-agents.

        A sub-agent starts at the parent's last answer. A turn of the parent waits for the
        sub-agents whose last answer came before it.
        """
        last, answered_s = tuple[int, ...](), 0.0
        running: list[tuple[float, int]] = []  # end (s) and last turn of each sub-agent
        for request in session["requests"]:
            if request.get("type") == "subagent":
                start_s, end_s = _span(request)
                last_turn = self._chain(request, last, max(0.0, start_s - answered_s))
                if last_turn is not None:
                    running.append((end_s, last_turn))
                continue
            if self._is_long(request):
                return
            ended = {turn: end_s for end_s, turn in running if end_s <= request["t"]}
            running = [(end_s, turn) for end_s, turn in running if end_s > request["t"]]
            wait_s = max(0.0, request["t"] - max(answered_s, *ended.values(), 0.0))
            if not ended and "think_time" in request:
                wait_s = request["think_time"]
            last = (self._add(request, (*last, *ended), wait_s),)
            answered_s = request["t"] + request.get("api_time", 0.0)

    def _chain(
        self, session: Mapping[str, Any], after: tuple[int, ...], wait_s: float
    ) -> int | None:
        """Add the turns of a sub-agent; returns its last turn, or None if it has none."""
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
        """Add a turn; returns its place in the session."""
        num_full_blocks, rest = divmod(request["in"], self._block_size)
        full, first_id = request["hash_ids"][:num_full_blocks], self._first_shared_id
        content = tuple([first_id + block_id for block_id in full])
        if rest:
            content += (self._first_id + next(self._partial),)
        output_len, answer_s = max(1, request["out"]), request.get("api_time", 0.0)
        self.turns.append(
            Turn(
                prompt_len=request["in"],
                output_len=output_len,
                ids=content,
                after=after,
                wait_s=wait_s,
                answer_s=answer_s,
            )
        )
        return len(self.turns) - 1

    def _is_long(self, request: Mapping[str, Any]) -> bool:
        return bool(request["in"] + max(1, request["out"]) >= self._max_len)


def _has_session_times(subagent: Mapping[str, Any]) -> bool:
    """True if the times of a sub-agent's requests are the session's, and not its own."""
    return any(request.get("t", 0.0) >= subagent["t"] > 0 for request in subagent["requests"][:1])


def _span(subagent: Mapping[str, Any]) -> tuple[float, float]:
    """The times of a sub-agent's first request and last answer, in s of the session.

    If its requests have times of their own, `t` is its end, as in the files of kv-cache-tester.
    """
    if not _has_session_times(subagent):
        return subagent["t"] - subagent["duration_ms"] / 1000, subagent["t"]
    first, last = subagent["requests"][0], subagent["requests"][-1]
    return first["t"], last["t"] + last.get("api_time", 0.0)


class AgentSessions(Trace):
    """Sessions as github.com/callanjfox/kv-cache-tester publishes them, one JSON object a line.

    Every session is a chain of requests: `in` and `out` tokens, `hash_ids` of block_size prompt
    tokens each, `think_time` between the last answer and the request, `api_time` of the recorded
    server, in s. A request of type "subagent" is a separate chain, whose last answer came `t`
    seconds after the session's start, or, if none of its requests has an earlier `t`, which began
    with the first of them.

    Equal ids are equal content within one session or in the whole file: as its sessions say by
    hash_id_scope "local" or "global", or else as shared_ids says (None: within one session). A
    request of type "s" and one of type "n" of the same prompt are two requests. An answer without
    tokens (cancelled) counts as one token. num_sessions keeps only the first lines. With max_len, a
    chain ends before its first request of max_len tokens or more.
    """

    def __init__(
        self, path: str, num_sessions: Count | None = None, *, shared_ids: bool | None = None
    ) -> None:
        if num_sessions is not None and num_sessions < 1:
            raise InputError(
                key="trace.num_sessions",
                value=num_sessions,
                problem="must be at least 1, or null for all",
            )
        self.path = str(path)
        self.num_sessions = num_sessions
        self.shared_ids = shared_ids

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        if num_rows is not None:
            raise InputError(
                key=self.path,
                problem="sessions have no arrival times",
                remedy="choose arrivals=sessions",
            )
        items = [item for _, item in islice(json_lines(self.path, _problems), self.num_sessions)]
        sizes = sorted({item["block_size"] for item in items})
        if len(sizes) != 1:
            raise InputError(
                key=self.path, problem=f"has block sizes {sizes}: all sessions must have the same"
            )
        limit, shares = MAX_LEN if max_len is None else max_len, self._shares_ids(items)
        sessions = [
            SessionTurns(number, item, limit, shares=shares).turns
            for number, item in enumerate(items)
        ]
        if not any(sessions):
            raise InputError(
                key=self.path,
                problem=f"no session begins with less than {limit} tokens",
                remedy="raise workload.max_len",
            )
        return joined([turns for turns in sessions if turns], sizes[0])

    def _shares_ids(self, items: Sequence[Mapping[str, Any]]) -> bool:
        """True if equal ids are equal content in the whole file."""
        scopes = {item["hash_id_scope"] for item in items if "hash_id_scope" in item}
        if len(scopes) > 1:
            raise InputError(
                key=self.path,
                problem="has sessions of hash_id_scope local and global",
                remedy="split it",
            )
        if not scopes:
            return bool(self.shared_ids)
        (scope,) = scopes
        shares: bool = scope == "global"
        if self.shared_ids not in (None, shares):
            raise InputError(
                key=self.path,
                problem=(
                    f"hash_id_scope is {scope!r} and trace.shared_ids "
                    f"{str(self.shared_ids).lower()}"
                ),
                remedy="leave trace.shared_ids out",
            )
        return shares


def joined(sessions: Sequence[Sequence[Turn]], tokens_per_id: int) -> Rows:
    """The turns of all sessions as rows."""
    starts = np.cumsum([0, *map(len, sessions)])
    turns = list(chain.from_iterable(sessions))
    prompts = np.array([turn.prompt_len for turn in turns], np.int64)
    outputs = np.array([turn.output_len for turn in turns], np.int64)
    after = list[tuple[int, ...]]()
    for start, session in zip(starts.tolist(), sessions, strict=False):
        after += [tuple(start + position for position in turn.after) for turn in session]
    links = Turns(
        np.repeat(np.arange(len(sessions)), np.diff(starts)),
        after,
        np.array([turn.wait_s for turn in turns], np.float64),
        np.array([turn.answer_s for turn in turns], np.float64),
    )
    return Rows(
        prompt_len=prompts,
        output_len=outputs,
        arrival_s=None,
        prompt_ids=[turn.ids for turn in turns],
        tokens_per_id=tokens_per_id,
        turns=links,
    )


def _problems(session: Any) -> Iterator[str | None]:
    if not isinstance(session.get("requests"), list):
        yield "is not a session: an object with a list 'requests'"
    yield unread_key(session, OF_SESSION)
    if session.get("hash_id_scope", "local") not in ("local", "global"):
        yield f"hash_id_scope={session['hash_id_scope']!r}: is neither local nor global"
    if wrong_count(session, "block_size"):
        yield f"block_size={session.get('block_size')!r}: is not a whole number of tokens"
    for place, request in enumerate(session["requests"], start=1):
        for problem in filter(None, _request_problems(request, session["block_size"])):
            yield f"request {place}: {problem}"


def _request_problems(request: Any, block_size: int) -> Iterator[str | None]:
    if not isinstance(request, dict):
        yield "is not a JSON object"
        return
    is_subagent = request.get("type") == "subagent"
    yield unread_key(request, OF_SUBAGENT if is_subagent else OF_REQUEST)
    if is_subagent:
        yield from _subagent_problems(request, block_size)
    else:
        yield from (
            wrong_time(request, key)
            for key in ("t", *(name for name in OPTIONAL if name in request))
        )
        yield wrong_count(request, "in")
        yield wrong_count(request, "out", least=0)
        yield _wrong_ids(request, block_size)


def _subagent_problems(subagent: Mapping[str, Any], block_size: int) -> Iterator[str | None]:
    yield wrong_time(subagent, "t")
    if not isinstance(subagent.get("requests"), list):
        yield "a sub-agent needs a list 'requests'"
    for request in subagent["requests"]:
        yield from (
            f"of its sub-agent, {problem}"
            for problem in _request_problems(request, block_size)
            if problem
        )
    if not _has_session_times(subagent) and wrong_time(subagent, "duration_ms"):
        yield "a sub-agent needs duration_ms, unless its requests have times of the session"


def _wrong_ids(request: Mapping[str, Any], block_size: int) -> str | None:
    ids = request.get("hash_ids")
    if not isinstance(ids, list) or (
        ids and ({*map(type, ids)} != {int} or min(ids) < 0 or max(ids) > MAX_LEN)
    ):
        return "hash_ids is not a list of whole numbers"
    wanted = request["in"] // block_size
    if len(ids) >= wanted:
        return None
    return f"{len(ids)} hash_ids for {wanted} full blocks of {block_size} tokens"
