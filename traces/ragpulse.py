"""RAGPulse (JSON lines): retrieval-augmented prompts, which consist of recurring parts."""

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.core.slots import ceil_div
from testbed.traces.files import json_lines, numbered, unread_key, wrong_count, wrong_time
from testbed.traces.reader import columns
from testbed.traces.time_units import BareTimes, in_seconds

TOKENS_PER_ID = 16
# In the order of the prompt.
PARTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
PART_FILES = ("1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search")
PART_BITS = 32
SESSION = "session_id"
KNOWN = ("timestamp", "input_length", "output_length", "hash_ids", SESSION)
# A part's number and its tokens. The number replaces the id, which may have more than 31 bits.
Part = tuple[int, int]


class RagPulseJsonl(BareTimes):
    """0_trace.jsonl of github.com/flashserve/RAGPulse: timestamp (s), lengths and the parts of
    every prompt.

    The files of the parts (1_sys_prompt.jsonl and so on), with each hash id's token count, must be
    in the same folder. A content id identifies 16 tokens, so a prefix cache finds a part again only
    after the same tokens. Parts that are longer than input_length are cut; if they are shorter, the
    rest of the prompt is unique to the row.
    """

    @staticmethod
    def companions(path: str, **parameters: object) -> list[Path]:
        return [Path(path).with_name(f"{name}.jsonl") for name in PART_FILES]

    def read(self) -> Rows:
        parts = dict(self._parts())
        names: dict[bytes, int] = {}
        times, pairs, ids, sessions = [], [], [], []
        for number, item in json_lines(self.path, lambda item: _problems(item, parts)):
            times.append(float(item["timestamp"]))
            sessions.append(str(item.get(SESSION, "")))
            pairs.append((item["input_length"], item["output_length"]))
            blocks = _blocks(item, parts, first_id=-number)
            ids.append(tuple(names.setdefault(block.tobytes(), len(names)) for block in blocks))
        prompts, outputs = columns(pairs)
        return Rows(
            prompt_len=prompts,
            output_len=outputs,
            arrival_s=in_seconds(self.path, np.array(times), self.time_unit),
            prompt_ids=ids,
            tokens_per_id=TOKENS_PER_ID,
            session=numbered(sessions) if all(sessions) else None,
        )

    def _parts(self) -> Iterator[tuple[int, Part]]:
        """The id and the part of each line in the files of the parts."""
        numbers = count()
        for path in map(str, self.companions(self.path)):
            for number, item in json_lines(path):
                ids = [value for key, value in item.items() if key != "token_length"]
                has_id = len(ids) == 1 and type(ids[0]) is int
                if not has_id or wrong_count(item, "token_length", least=0):
                    raise InputError(
                        key=f"{path}, line {number}", problem="is not one id and its token_length"
                    )
                yield ids[0], (next(numbers), item["token_length"])


def _blocks(
    item: Mapping[str, Any], parts_by_id: Mapping[int, Part], first_id: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The prompt's tokens as numbers of part and position, [num_blocks, 16].

    Tokens of no part count as a part of the number first_id, which is unique to the request.
    """
    num_tokens = item["input_length"]
    parts = [parts_by_id[part_id] for name in PARTS for part_id in item["hash_ids"].get(name, [])]
    pieces = [_positions(number, length) for number, length in parts]
    content = np.concatenate([*pieces, np.empty(0, np.int64)])[:num_tokens]
    padded = _positions(first_id, ceil_div(num_tokens, TOKENS_PER_ID) * TOKENS_PER_ID)
    padded[: len(content)] = content
    return padded.reshape(-1, TOKENS_PER_ID)


def _positions(part: int, num_tokens: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The tokens of a part as numbers."""
    return (part << PART_BITS) + np.arange(num_tokens, dtype=np.int64)


def _problems(item: Any, parts_by_id: Mapping[int, Part]) -> Iterator[str | None]:
    try:  # the published files have the time as text
        yield wrong_time({"timestamp": float(item.get("timestamp"))}, "timestamp")
    except (TypeError, ValueError, OverflowError):
        yield wrong_time(item, "timestamp")
    yield from (wrong_count(item, key) for key in ("input_length", "output_length"))
    yield unread_key(item, KNOWN)
    if not isinstance(item.get(SESSION, ""), str | int):
        yield f"{SESSION}={item[SESSION]!r}: is not a name"
    parts = item.get("hash_ids")
    if not isinstance(parts, dict) or not all(
        isinstance(parts.get(name, []), list) for name in PARTS
    ):
        yield f"hash_ids is not an object with lists {', '.join(PARTS)}"
    for name in PARTS:
        for part_id in parts.get(name, []):
            if type(part_id) is not int or part_id not in parts_by_id:
                yield f"hash id {part_id!r} is in none of the files of parts"
