"""Mooncake traces (JSONL, plain or gzip): lengths, arrival times and the content of prompts as
block hashes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from testbed.core.errors import InputError, check_least
from testbed.core.request import Rows
from testbed.core.units import PositiveCount, PositiveTokens
from testbed.traces.contents import with_unknown
from testbed.traces.files import json_lines, wrong_count, wrong_time
from testbed.traces.reader import FileTrace, columns

TOKENS_PER_ID = 512
SIZES = tuple(1 << power for power in range(13))  # of blocks that a hint may name


class MooncakeJsonl(FileTrace):
    """A trace of github.com/kvcache-ai/Mooncake: timestamp (ms), input_length, output_length,
    hash_ids.

    One hash id identifies tokens_per_id prompt tokens and all tokens before them, so equal ids are
    equal prefixes; the last block of a prompt may be partial. A row without hash_ids has a content
    that no other has. Rows repeated for a longer run repeat their content too. num_requests: only
    the first rows of the file; None: all.
    """

    def __init__(
        self,
        path: str,
        tokens_per_id: PositiveTokens = TOKENS_PER_ID,
        num_requests: PositiveCount | None = None,
    ) -> None:
        super().__init__(path)
        check_least(1, tokens_per_id=tokens_per_id)
        if num_requests is not None:
            check_least(1, num_requests=num_requests)
        self.tokens_per_id = tokens_per_id
        self.num_requests = num_requests

    def read(self) -> Rows:
        listed = [item for _, item in json_lines(self.path, _problems)]
        items = listed[: self.num_requests]
        if self.num_requests is not None and len(items) < self.num_requests:
            raise InputError(
                f"{self.path}: has {len(items)} requests, and trace.num_requests is "
                f"{self.num_requests} (give fewer, or null for all)"
            )
        self._check_ids(items)
        arrival_s = np.array([item["timestamp"] for item in items]) / 1000
        prompts, outputs = columns(
            [(item["input_length"], item["output_length"]) for item in items]
        )
        ids = [tuple(item.get("hash_ids") or ()) for item in items]
        if any(ids):
            contents = with_unknown(ids, prompts.tolist(), self.tokens_per_id)
            return Rows(
                prompt_len=prompts,
                output_len=outputs,
                arrival_s=arrival_s,
                prompt_ids=contents,
                tokens_per_id=self.tokens_per_id,
            )
        return Rows(prompts, outputs, arrival_s)

    def _check_ids(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Raise InputError for a row with another number of ids, and name the size that fits."""
        for number, item in enumerate(items, start=1):
            count, length = len(item.get("hash_ids") or ()), item["input_length"]
            wanted = -(-length // self.tokens_per_id)
            if count not in (0, wanted):
                raise InputError(
                    f"{self.path}, line {number}: {count} hash_ids for {wanted} blocks of "
                    f"{self.tokens_per_id} tokens ({_hint(items)})"
                )


def _hint(items: Sequence[Mapping[str, Any]]) -> str:
    """What to do about another size of blocks."""
    pairs = [(item["input_length"], len(item.get("hash_ids") or ())) for item in items]
    fitting = [
        size for size in SIZES if all(count in (0, -(-length // size)) for length, count in pairs)
    ]
    if not fitting:
        return "no size of blocks fits all lines: mend the file"
    return f"the file's blocks have {fitting[-1]} tokens: give trace.tokens_per_id={fitting[-1]}"


def _problems(item: Any) -> Iterator[str | None]:
    yield wrong_time(item, "timestamp", "milliseconds")
    yield from (wrong_count(item, key) for key in ("input_length", "output_length"))
    ids = item.get("hash_ids") or []
    if not isinstance(ids, list) or not all(type(block_id) is int for block_id in ids):
        yield "hash_ids is not a list of whole numbers"
