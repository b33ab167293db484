"""Mooncake traces (JSONL, plain or gzip): lengths, arrival times and the content of prompts as
block hashes.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from testbed.core.errors import InputError, check_least
from testbed.core.request import Column, Rows
from testbed.core.units import PositiveCount, PositiveTokens
from testbed.traces.contents import with_unknown
from testbed.traces.files import json_lines, numbered, unread_key, wrong_count, wrong_time
from testbed.traces.length_model import Floats
from testbed.traces.reader import FileTrace, columns
from testbed.traces.time_units import WORDS, TimeUnit, checked_unit, in_seconds

TOKENS_PER_ID = 512
TIME = "timestamp"
LENGTHS = ("input_length", "output_length")
CHAT, PARENT = (
    "chat_id",
    "parent_chat_id",
)  # of Qwen-Bailian's traces; a first request has no parent
OTHERS = ("hash_ids", CHAT, PARENT, "turn", "type")
SIZES = tuple(1 << power for power in range(13))  # of blocks that a hint may name


class MooncakeJsonl(FileTrace):
    """A trace of github.com/kvcache-ai/Mooncake: timestamp (ms), input_length, output_length,
    hash_ids. A file without timestamps has no times to replay.

    One hash id identifies tokens_per_id prompt tokens and all tokens before them, so equal ids are
    equal prefixes; the last block of a prompt may be partial. A row without hash_ids has a content
    that no other has. Rows repeated for a longer run repeat their content too. num_requests: only
    the first rows of the file; None: all.

    time_unit: of timestamp; None: ms, as Mooncake's, but refused if many requests would come at
    over 100 a second, as a trace in seconds does, or one every 100 seconds. Qwen-Bailian's traces
    have these columns with blocks of 16 tokens, seconds, and chat_id and parent_chat_id, by which
    the requests of a chat are a session; they are refused in ms, as is a fraction of a millisecond.
    """

    def __init__(
        self,
        path: str,
        tokens_per_id: PositiveTokens = TOKENS_PER_ID,
        num_requests: PositiveCount | None = None,
        time_unit: TimeUnit | None = None,
    ) -> None:
        super().__init__(path)
        check_least(1, tokens_per_id=tokens_per_id)
        if num_requests is not None:
            check_least(1, num_requests=num_requests)
        self.tokens_per_id = tokens_per_id
        self.num_requests = num_requests
        self.time_unit = checked_unit(time_unit)

    def read(self) -> Rows:
        lines = json_lines(self.path, self._problems)
        items = [item for _, item in islice(lines, self.num_requests)]
        if self.num_requests is not None and len(items) < self.num_requests:
            raise InputError(
                key=self.path,
                problem=f"has {len(items)} requests, and trace.num_requests is {self.num_requests}",
                remedy="give fewer, or null for all",
            )
        self._check_ids(items)
        arrival_s = self._times(items)
        prompts, outputs = columns(
            [(item["input_length"], item["output_length"]) for item in items]
        )
        ids = [tuple(item.get("hash_ids") or ()) for item in items]
        contents = with_unknown(ids, prompts.tolist(), self.tokens_per_id) if any(ids) else None
        return Rows(
            prompt_len=prompts,
            output_len=outputs,
            arrival_s=arrival_s,
            prompt_ids=contents,
            tokens_per_id=1 if contents is None else self.tokens_per_id,
            session=_sessions(items),
        )

    def _times(self, items: Sequence[Mapping[str, Any]]) -> Floats | None:
        """The time of each request in s since the earliest; None if the file has none."""
        times = [item[TIME] for item in items if TIME in item]
        if 0 < len(times) < len(items):
            raise InputError(
                key=self.path, problem="some lines have no timestamp", remedy="give all of them one"
            )
        if not times:
            return None
        since_first = np.array(times) - min(times)  # exact before the division, also since 1970
        return in_seconds(self.path, since_first, self.time_unit, usual="ms")

    def _problems(self, item: Any) -> Iterator[str | None]:
        yield unread_key(item, (TIME, *LENGTHS, *OTHERS))
        if TIME in item:
            yield wrong_time(item, TIME, WORDS[self.time_unit or "ms"])
        if self.time_unit != "s" and (CHAT in item or item.get(TIME, 0) % 1):
            yield (
                f"timestamp={item.get(TIME)}: is in seconds, as in Qwen-Bailian's traces (give "
                "trace.time_unit=s)"
            )
        yield from (wrong_count(item, key) for key in LENGTHS)
        ids = item.get("hash_ids") or []
        if not isinstance(ids, list) or not {int}.issuperset(map(type, ids)):
            yield "hash_ids is not a list of whole numbers"
        if any(key in item and type(item[key]) is not int for key in (CHAT, PARENT)):
            yield f"{CHAT} or {PARENT} is not a whole number"

    def _check_ids(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Raise InputError for a row with another number of ids, and name the size that fits."""
        for number, item in enumerate(items, start=1):
            count, length = len(item.get("hash_ids") or ()), item["input_length"]
            wanted = -(-length // self.tokens_per_id)
            if count not in (0, wanted):
                raise InputError(
                    key=f"{self.path}, line {number}",
                    problem=(
                        f"{count} hash_ids for {wanted} blocks of {self.tokens_per_id} tokens "
                        f"({_hint(items)})"
                    ),
                )


def _hint(items: Sequence[Mapping[str, Any]]) -> str:
    """The remedy for another size of blocks."""
    pairs = [(item["input_length"], len(item.get("hash_ids") or ())) for item in items]
    fitting = [
        size for size in SIZES if all(count in (0, -(-length // size)) for length, count in pairs)
    ]
    if not fitting:
        return "no size of blocks fits all lines: mend the file"
    return f"the file's blocks have {fitting[-1]} tokens: give trace.tokens_per_id={fitting[-1]}"


def _sessions(items: Sequence[Mapping[str, Any]]) -> Column | None:
    """The number of each request's chat, which its first request names; None without chats. The
    lines may be in any order.
    """
    if not all(CHAT in item for item in items):
        return None
    parent_of = {item[CHAT]: item.get(PARENT, -1) for item in items}
    return numbered([_first_of(item[CHAT], parent_of) for item in items])


def _first_of(chat: int, parent_of: Mapping[int, int]) -> int:
    """The first request of a chat; of one that began before the file, the one that it names."""
    seen = {chat}
    while (parent := parent_of.get(chat, -1)) >= 0 and parent not in seen:
        chat = parent
        seen.add(chat)
    return chat
