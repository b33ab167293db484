"""The ends of the chunks of a prompt whose states vLLM caches (mamba_cache_mode=align): a state can
be found only if a chunk ended behind it, or if the kernel exported it within the chunk.
"""

from dataclasses import dataclass

from testbed.core.slots import ceil_div
from testbed.vllm.releases import Release


@dataclass(frozen=True)
class Prefill:
    """Tokens that are computed of a request. num_tokens: all that it has when it is admitted, its
    prompt and what it had generated. junction: tokens of a prefix that others share and of which no
    state is kept yet; 0: none.
    """

    prompt_len: int
    num_tokens: int
    junction: int = 0

    @property
    def end(self) -> int:
        """Its end: the last token of a resumed request is a decode."""
        return max(self.prompt_len, self.num_tokens - 1)


@dataclass(frozen=True)
class StateChunks:
    """The chunks of a release in blocks of block_size tokens.

    alignment: a kernel exports a state within a chunk at multiples of this number of tokens from
    its beginning; None: it exports none.
    """

    release: Release
    block_size: int
    alignment: int | None

    @property
    def exports_any(self) -> bool:
        """True if any chunk exports a state."""
        return self.alignment is not None

    def cut(self, start: int, new: int, prefill: Prefill, most: int) -> int:
        """The tokens of a chunk that begins at token `start` and may have `new` tokens; most:
        tokens of any chunk. 0: it waits for a larger budget (vLLM's _mamba_block_aligned_split).
        """
        if start >= prefill.end:
            return new
        end = start + new
        if self.release.cuts_at_junctions:
            return self._end_by_stops(start, end, prefill, most) - start
        last = prefill.num_tokens // self.block_size * self.block_size
        if end < last:
            return new // self.block_size * self.block_size
        return last - start if start < last else new

    def exports(self, start: int, end: int, position: int) -> bool:
        """True if the kernel exports the state of token `position` within a chunk. As
        is_mamba_prefill_checkpoint_valid.
        """
        size = self.block_size
        if not self.exports_any or start % size:
            return False
        has_column = ceil_div(end, size) - 2 > (start - 1) // size
        is_within = start + size <= position < end
        return has_column and is_within and (position - start) % (self.alignment or 1) == 0

    def num_pages(self, start: int, end: int, prefill_end: int) -> int:
        """Pages of a state that a chunk takes: one that it writes, if it leaves a block, and one
        that it exports, if it ends the prefill.
        """
        size = self.block_size
        if ceil_div(end, size) == ceil_div(start, size):
            return 0
        is_last = end >= prefill_end
        return 1 + (is_last and self.exports(start, end, self.last_position(end)))

    def last_position(self, num_tokens: int) -> int:
        """The end of the last block of these tokens, one of which is always computed again."""
        return (num_tokens - 1) // self.block_size * self.block_size

    def _end_by_stops(self, start: int, end: int, prefill: Prefill, most: int) -> int:
        """The end of a chunk: at a block's, then at the first place whose state is kept."""
        size, junction = self.block_size, prefill.junction
        is_last = end >= prefill.end
        exports = is_last and self.exports(start, end, self.last_position(prefill.end))
        if not is_last:
            aligned = end // size * size
            end = aligned if aligned > start or size <= most else end
        stops = [0 if exports else self._last_stop(prefill)]
        if start % size and not exports:
            stops.append((start // size + 1) * size)
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        return max(min((stop for stop in stops if start < stop < end), default=end), start)

    def _last_stop(self, prefill: Prefill) -> int:
        """The last end of a block at which a state is kept."""
        num_tokens = prefill.num_tokens - self.release.exports_states
        return num_tokens // self.block_size * self.block_size
