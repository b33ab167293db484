"""From a recorded session to its turns: who waits for whom, for how long, and what the prompts contain."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

SESSION_BITS = 32  # a content id: the number of its session, then the id that the file gives it
PARTIAL = 1 << 31  # and from here on the partial last blocks of prompts, which nobody else has


class Turn(NamedTuple):
    """One request: what Rows and Turns say of it; `after` counts from the first turn of its session."""

    prompt_len: int
    output_len: int
    ids: tuple[int, ...]
    after: tuple[int, ...]
    wait_s: float
    answer_s: float


class Prefixes:
    """Ids of prefixes that sessions share; negative, so that no session has them for another content."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], int] = {}

    def id_of(self, text: tuple[Any, ...], place: int) -> int:
        """The id of the block at `place` of a text that these facts name."""
        number = self._known.setdefault(text, len(self._known))
        return -((number + 1) << SESSION_BITS) + place


class _Chain(NamedTuple):
    """A sub-agent: when the record says that it ended, and its last turn."""

    end_s: float
    last: int


class SessionTurns:
    """The turns of one session, each after those that it waits for."""

    def __init__(self, number: int, session: Mapping[str, Any], max_len: int, prefixes: Prefixes | None) -> None:
        self.turns: list[Turn] = []
        self._number = number
        self._block_size: int = session["block_size"]
        self._max_len = max_len
        self._prefixes = prefixes
        self._partial = count(PARTIAL)
        self._shared: dict[int, int] = {}
        self._walk(session)

    def _walk(self, session: Mapping[str, Any]) -> None:
        """The parent's chain; sub-agents start from its last answer, and are waited for if they ended in time."""
        self._share(session, session["requests"])
        last, answered_s, beside = (), 0.0, list[_Chain]()
        for request in session["requests"]:
            if request["type"] == "subagent":
                wait_s = max(0.0, request["t"] - request["duration_ms"] / 1000 - answered_s)
                end = self._chain(request, last, wait_s)
                beside += [] if end is None else [_Chain(request["t"], end)]
                continue
            if self._is_long(request):
                return
            ended = [chain for chain in beside if chain.end_s <= request["t"]]
            beside = [chain for chain in beside if chain.end_s > request["t"]]
            since_s = max([answered_s, *(chain.end_s for chain in ended)])
            wait_s = max(0.0, request["t"] - since_s)
            if not ended and "think_time" in request:
                wait_s = request["think_time"]
            last = (self._add(request, (*last, *(chain.last for chain in ended)), wait_s),)
            answered_s = request["t"] + request.get("api_time", 0.0)

    def _chain(self, session: Mapping[str, Any], after: tuple[int, ...], wait_s: float) -> int | None:
        """A sub-agent's requests, one after another; the last of them."""
        self._share(session, session["requests"])
        last = None
        for request in session["requests"]:
            if request["type"] == "subagent" or self._is_long(request):
                break
            last = self._add(request, after, wait_s if last is None else request.get("think_time", 0.0))
            after = (last,)
        return last

    def _add(self, request: Mapping[str, Any], after: tuple[int, ...], wait_s: float) -> int:
        ids, full = self._ids(request["hash_ids"]), request["in"] // self._block_size
        partial = ((self._number << SESSION_BITS) + next(self._partial),) if request["in"] % self._block_size else ()
        answer = max(1, request["out"])
        self.turns.append(
            Turn(request["in"], answer, (*ids[:full], *partial), after, wait_s, request.get("api_time", 0.0))
        )
        return len(self.turns) - 1

    def _is_long(self, request: Mapping[str, Any]) -> bool:
        return bool(request["in"] + max(1, request["out"]) >= self._max_len)

    def _share(self, chain: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]) -> None:
        """Give the blocks of a chain's tools and system prompt the ids that all sessions have for them."""
        if self._prefixes is None or not requests or "hash_ids" not in requests[0]:
            return
        lengths = chain.get("tool_tokens", 0), chain.get("system_tokens", 0)
        text = requests[0].get("model"), *lengths
        for place, one in enumerate(requests[0]["hash_ids"][: sum(lengths) // self._block_size]):
            self._shared.setdefault(one, self._prefixes.id_of(text, place))

    def _ids(self, hash_ids: Sequence[int]) -> list[int]:
        own, shared = self._number << SESSION_BITS, self._shared
        if not shared:
            return [own + one for one in hash_ids]
        return [shared[one] if one in shared else own + one for one in hash_ids]
