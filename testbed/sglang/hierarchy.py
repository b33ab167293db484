"""The host pool of SGLang's HiCache, as a command asks for it (--enable-hierarchical-cache)."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from testbed.core.errors import DoesNotStart, InputError
from testbed.sglang.command import ON, SERVE
from testbed.sglang.option_values import decimal, number, refusal
from testbed.sglang.pool import TokenPool

ENABLE, MODE = "--enable-hierarchical-cache", "--hicache-host-memory-mode"
RATIO, SIZE, WRITES = "--hicache-ratio", "--hicache-size", "--hicache-write-policy"
DEFAULT_RATIO = 2.0
GB = 10**9


class HostPool(NamedTuple):
    """num_tokens: in whole pages. write_policy: when the host is written."""

    num_tokens: int
    write_policy: str


def host_pool_of(values: Mapping[str, str], pool: TokenPool) -> HostPool | None:
    """The host pool behind this one; None without --enable-hierarchical-cache. Raises DoesNotStart
    if SGLang would not start, and InputError for what is not modelled.
    """
    if values.get(ENABLE) != ON:
        for name in (RATIO, SIZE, WRITES, MODE):
            if name in values:
                raise refusal(values, name, f"says nothing without {ENABLE}", "add it")
        return None
    if values.get("--disable-radix-cache") == ON:
        raise DoesNotStart(
            key=SERVE,
            system="SGLang",
            problem=f"{ENABLE} and --disable-radix-cache exclude each other",
        )
    if values.get(MODE, "cache") != "cache":
        raise refusal(values, MODE, "is not modelled (cache)")
    if pool.window_tokens is not None:
        raise InputError(
            key=f"{SERVE}: {ENABLE}",
            problem="is not modelled beside a pool for layers with a window",
            remedy="leave it out",
        )
    return HostPool(_num_tokens(values, pool), values.get(WRITES, "write_through"))


def _num_tokens(values: Mapping[str, str], pool: TokenPool) -> int:
    """Pages by the size, of which 0 says nothing, or by the ratio, and one more (HostKVCache)."""
    size, ratio = number(values, SIZE), decimal(values, RATIO)
    if ratio is not None and not 0 < ratio < inf:
        raise refusal(values, RATIO, "must be above 0 and finite")
    if size is not None and size > 0:
        asked = int(size * GB // pool.cells.full)
    else:
        asked = int(pool.num_tokens * (DEFAULT_RATIO if ratio is None else ratio))
    return (asked // pool.page_size + 1) * pool.page_size
