"""Mooncake traces (JSONL, plain or gzip): lengths, arrival times and the content of prompts as
block hashes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from testbed.core.request import Rows
from testbed.traces.files import json_lines, wrong_count, wrong_time
from testbed.traces.reader import FileTrace, columns

TOKENS_PER_ID = 512


class MooncakeJsonl(FileTrace):
    """A trace of github.com/kvcache-ai/Mooncake: timestamp (ms), input_length, output_length,
    hash_ids.

    One hash id identifies 512 prompt tokens and all tokens before them, so equal ids are equal
    prefixes; the last block of a prompt may be partial. Rows repeated for a longer run repeat their
    content too.
    """

    def read(self) -> Rows:
        items = [item for _, item in json_lines(self.path, _problems)]
        arrival_s = np.array([item["timestamp"] for item in items]) / 1000
        prompts, outputs = columns(
            [(item["input_length"], item["output_length"]) for item in items]
        )
        return Rows(
            prompts, outputs, arrival_s, [tuple(item["hash_ids"]) for item in items], TOKENS_PER_ID
        )


def _problems(item: Any) -> Iterator[str | None]:
    yield wrong_time(item, "timestamp", "milliseconds")
    yield from (wrong_count(item, key) for key in ("input_length", "output_length"))
    ids, wanted = item.get("hash_ids"), -(-item["input_length"] // TOKENS_PER_ID)
    if not isinstance(ids, list) or not all(type(block_id) is int for block_id in ids):
        yield "hash_ids is not a list of whole numbers"
    elif len(ids) != wanted:
        yield f"{len(ids)} hash_ids for {wanted} blocks of {TOKENS_PER_ID} tokens"
