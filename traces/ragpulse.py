"""RAGPulse (JSON lines): retrieval-augmented questions, whose prompts are put together from parts that recur."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.files import MAX_LEN, json_lines
from traces.reader import FileTrace, columns

TOKENS_PER_ID = 16
PARTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")  # in the order of the prompt
PART_FILES = ("1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search")
PART_BITS = 32


class RagPulseJsonl(FileTrace):
    """0_trace.jsonl of github.com/flashserve/RAGPulse: timestamp (s), lengths and the parts of every prompt.

    The files of the parts (1_sys_prompt.jsonl and so on), which give each hash id's tokens, must lie beside it. A
    content id names 16 tokens, so a part is found again where the same parts, or their ends, stand before it. Where the
    parts are shorter than input_length, the rest is nobody else's; where they are longer, they are cut.
    """

    def read(self) -> Rows:
        """All rows in file order, with arrival_s and prompt_ids."""
        tokens_of = dict(self._parts())
        names: dict[bytes, int] = {}
        times, pairs, ids = [], [], []
        for number, item in _lines(self.path, lambda item: _problem(item, tokens_of)):
            times.append(float(item["timestamp"]))
            pairs.append((item["input_length"], item["output_length"]))
            blocks = _blocks(item, tokens_of, own=-number)
            ids.append(tuple(names.setdefault(block.tobytes(), len(names)) for block in blocks))
        prompts, outputs = columns(pairs)
        return Rows(prompts, outputs, np.array(times), ids, TOKENS_PER_ID)

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Every hash id and its tokens; a line has an id and its token_length."""
        for name in PART_FILES:
            path = str(Path(self.path).with_name(f"{name}.jsonl"))
            for number, item in _lines(path, _no_object):
                ids = [value for key, value in item.items() if key != "token_length"]
                length = item.get("token_length")
                if len(ids) != 1 or type(ids[0]) is not int or type(length) is not int or not 0 <= length <= MAX_LEN:
                    raise InputError(f"{path}, line {number}: is not one id and its token_length")
                yield ids[0], length


def _lines(path: str, problem: Callable[[Any], str | None]) -> list[tuple[int, Any]]:
    items = list(json_lines(path, problem))
    if not items:
        raise InputError(f"{path}: is empty; give a file with rows")
    return items


def _no_object(item: Any) -> str | None:
    return None if isinstance(item, dict) else "is not a JSON object"


def _blocks(item: Mapping[str, Any], tokens_of: Mapping[int, int], own: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The prompt's tokens by part and place, 16 a row; what no part names is the row's own."""
    size = item["input_length"]
    parts = [one for name in PARTS for one in item["hash_ids"].get(name, [])]
    told = [(one << PART_BITS) + np.arange(tokens_of[one], dtype=np.int64) for one in parts]
    padded = (own << PART_BITS) + np.arange(-(-size // TOKENS_PER_ID) * TOKENS_PER_ID, dtype=np.int64)
    content = np.concatenate([*told, np.empty(0, np.int64)])[:size]
    padded[: len(content)] = content
    return padded.reshape(-1, TOKENS_PER_ID)


def _problem(item: Any, tokens_of: Mapping[int, int]) -> str | None:
    """What is wrong with one line, None for nothing."""
    if wrong := _no_object(item):
        return wrong
    try:
        sound = 0 <= float(item["timestamp"]) < float("inf")
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        return f"timestamp is {item.get('timestamp')!r}, not a time in seconds"
    for key in ("input_length", "output_length"):
        if type(item.get(key)) is not int or not 1 <= item[key] <= MAX_LEN:
            return f"{key} is {item.get(key)!r}, not a whole number of tokens, at least 1"
    parts = item.get("hash_ids")
    if not isinstance(parts, dict) or not all(isinstance(parts.get(name, []), list) for name in PARTS):
        return f"hash_ids is not an object with lists {', '.join(PARTS)}"
    unknown = [one for name in PARTS for one in parts.get(name, []) if type(one) is not int or one not in tokens_of]
    return f"hash id {unknown[0]!r} is in none of the files of parts" if unknown else None
