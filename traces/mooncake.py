"""Mooncake traces (JSONL, plain or gzip): lengths, arrival times and the content of prompts as block hashes."""

from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.files import MAX_LEN, json_lines
from traces.reader import FileTrace, columns

TOKENS_PER_ID = 512


class MooncakeJsonl(FileTrace):
    """A trace of github.com/kvcache-ai/Mooncake: timestamp (ms), input_length, output_length, hash_ids.

    One hash id names 512 prompt tokens together with everything before them, so equal ids are equal prefixes; the
    last block of a prompt may be partial. Rows repeated to fill a longer run repeat their content too.
    """

    def read(self) -> Rows:
        """All rows in file order, with arrival_s and prompt_ids."""
        items = [item for _, item in json_lines(self.path, _problem)]
        if not items:
            raise InputError(f"{self.path}: is empty; give a file with rows")
        arrival_s = np.array([item["timestamp"] for item in items]) / 1000
        prompts, outputs = columns([(item["input_length"], item["output_length"]) for item in items])
        return Rows(prompts, outputs, arrival_s, [tuple(item["hash_ids"]) for item in items], TOKENS_PER_ID)


def _problem(item: Any) -> str | None:
    """What is wrong with one line, None for nothing."""
    if not isinstance(item, dict):
        return "is not a JSON object"
    if type(item.get("timestamp")) not in (int, float) or not 0 <= item["timestamp"] < float("inf"):
        return f"timestamp is {item.get('timestamp')!r}, not a time in milliseconds"
    for key in ("input_length", "output_length"):
        if type(item.get(key)) is not int or not 1 <= item[key] <= MAX_LEN:
            return f"{key} is {item.get(key)!r}, not a whole number of tokens, at least 1"
    ids = item.get("hash_ids")
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        return "hash_ids is not a list of whole numbers"
    wanted = -(-item["input_length"] // TOKENS_PER_ID)
    return None if len(ids) == wanted else f"{len(ids)} hash_ids for {wanted} blocks of {TOKENS_PER_ID} tokens"
