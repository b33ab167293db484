"""What in a log itself speaks against replaying it: prompts that recur, and output lengths that cannot be true."""

from collections.abc import Iterator
from typing import NamedTuple

from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.request import Column
from testbed.traces.vllm_log import Times, VllmLog

RECURRING = 0.9  # of the prompts' lengths that are those of one period before
FEWEST_LENGTHS = 8  # in a period; a benchmark of one length recurs by itself
IMPOSSIBLE = 0.02  # of the requests


class Recurrence(NamedTuple):
    """share of the prompts are as long as the one `period` requests before."""

    period: int
    share: float


def doubts(log: VllmLog, config: RunConfig) -> Iterator[str]:
    """Lines for the reader; InputError where a prefix cache meets prompts that recur and whose contents are unknown."""
    found = recurrence(log.read().prompt_len)
    caches = "prefix_cach" in config.policy.name
    if log.read().prompt_ids is None:
        if found and caches:
            raise InputError(
                f"{log.path}: {found.share:.0%} of the prompts are as long as the one {found.period} requests before; "
                "a prefix cache finds them again where they are the same. Give their contents (--workload FILE, ids or "
                "hashes), or policy=paged for a server without a prefix cache"
            )
        if caches:
            yield "no token ids (--workload): no prompt finds another's blocks"
    if count := impossible_lengths(log.times):
        yield (
            f"{count:,} of {len(log.times.output_len):,} requests have more output tokens than another that was "
            "decoding all the while: lengths were tokenized again, or one was preempted, or a step gave several tokens"
        )


def recurrence(prompt_len: Column) -> Recurrence | None:
    """The shortest period with which nearly all lengths recur; None where there is none."""
    for period in range(FEWEST_LENGTHS, len(prompt_len) // 2 + 1):
        share = float((prompt_len[period:] == prompt_len[:-period]).mean())
        if share >= RECURRING and len(set(prompt_len[:period].tolist())) >= FEWEST_LENGTHS:
            return Recurrence(period, share)
    return None


def impossible_lengths(times: Times) -> int:
    """How many requests have more output tokens than another whose decoding began no later and ended no earlier, if
    these are more than a few. That one had a token in every iteration in which the other had one."""
    wrong = sum(
        bool(((times.first_token_s <= first) & (times.finish_s >= finish) & (times.output_len < length)).any())
        for _, first, finish, length in zip(*times, strict=True)
    )
    return wrong if wrong > IMPOSSIBLE * len(times.output_len) else 0
