"""The division of SGLang's memory between layers of full attention and those with a window
(model_executor/pool_configurator.py, 0.5.23).
"""

from dataclasses import dataclass
from typing import Protocol

from testbed.core.errors import DoesNotStart
from testbed.core.slots import ceil_div
from testbed.sglang.command import SERVE

EVICTED_EVERY = 128  # SGLANG_SWA_EVICTION_INTERVAL: tokens behind a window that are kept until then

Sizes = tuple[int, int | None]  # tokens of full attention, and of windows if they have a pool


@dataclass(frozen=True)
class CellBytes:
    """Bytes of a token on one GPU, in all layers of full attention and in those of windows that
    have a pool of their own.
    """

    full: int
    window: int = 0


class Division(Protocol):
    """A rule for the tokens of the pools, in whole pages."""

    def of_bytes(self, cells: CellBytes, num_bytes: int, page_size: int) -> Sizes:
        """The tokens of num_bytes bytes on each GPU."""

    def of_tokens(self, most: int, page_size: int) -> Sizes:
        """The tokens if the server asks for at most `most`."""


class OnePool:
    """All layers store all tokens."""

    def of_bytes(self, cells: CellBytes, num_bytes: int, page_size: int) -> Sizes:
        return self.of_tokens(num_bytes // cells.full, page_size)

    def of_tokens(self, most: int, page_size: int) -> Sizes:
        return most // page_size * page_size, None


@dataclass(frozen=True)
class ByRatio:
    """The pool of layers with a window has a share of the tokens of the other."""

    ratio: float
    window: int

    def of_bytes(self, cells: CellBytes, num_bytes: int, page_size: int) -> Sizes:
        most = int(num_bytes // (cells.full + self.ratio * cells.window))
        return self.of_tokens(most, page_size)

    def of_tokens(self, most: int, page_size: int) -> Sizes:
        full = most // page_size * page_size
        windows = int(full * self.ratio) // page_size * page_size
        if full and self.window + page_size >= windows:
            raise _no_start(
                f"{windows} tokens of layers with a window hold no request, which needs more than "
                f"{self.window} and a page",
                "raise --max-total-tokens, --mem-fraction-static or --swa-full-tokens-ratio",
            )
        return full, windows


@dataclass(frozen=True)
class ByRequests:
    """The pool of layers with a window has the tokens that all running requests and the chunks in
    flight need at most (compute_swa_request_cap); the other has the rest. So it is without a prefix
    cache, if the command gives the number of requests.
    """

    window: int
    num_requests: int
    chunk_tokens: int

    def of_bytes(self, cells: CellBytes, num_bytes: int, page_size: int) -> Sizes:
        needed = self._needed(page_size)
        most = (num_bytes - needed * cells.window) // cells.full
        if most < page_size:
            raise _no_start(
                f"{needed} tokens of layers with a window leave the other layers no page",
                "lower --max-running-requests, or raise --mem-fraction-static or --tp-size",
            )
        return most // page_size * page_size, needed

    def of_tokens(self, most: int, page_size: int) -> Sizes:
        full = most // page_size * page_size
        return full, min(self._needed(page_size), most)  # not in whole pages, as SGLang has it

    def _needed(self, page_size: int) -> int:
        of_request = self.window + EVICTED_EVERY + 2 * page_size
        needed = of_request * self.num_requests + self.chunk_tokens + page_size
        return ceil_div(needed, page_size) * page_size


def _no_start(problem: str, remedy: str) -> DoesNotStart:
    return DoesNotStart(key=SERVE, system="SGLang", problem=problem, remedy=remedy)
