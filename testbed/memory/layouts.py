"""The structure of a policy's tables, as data: for GPU kernels, pictures and checks."""

from typing import NamedTuple, TypeAlias

from testbed.memory.pools import PoolSpec


class BlockLayout(NamedTuple):
    """A table is a list of blocks of `block_size` slots, a slot for each token."""

    block_size: int


class ExtentLayout(NamedTuple):
    """A table is one extent, whose length the allocator counts in blocks of `block_size` slots."""

    block_size: int


class Column(NamedTuple):
    """Layers of a KV group whose pages store `units` units: `width` for each token, of which the
    last `window` are read.

    A width of 0: a page stores one state. Columns of one `part` of the pool take each other's
    pages.
    """

    group: int
    width: int
    units: int
    window: int | None
    part: int = 0

    @property
    def per_block(self) -> bool:
        """True if a sequence has a page for each block of its tokens; a state without checkpoints
        has one for all.
        """
        return self.width > 0 or self.window is not None

    @property
    def reads_all(self) -> bool:
        """True if its layers read all tokens: full attention."""
        return self.width > 0 and self.window is None


class PageLayout(NamedTuple):
    """A table has pages of several KV groups, in a pool whose slots are units.

    pool: in units. tokens_per_page: tokens of a block. Every page begins at a multiple of
    page_units. columns: what a sequence has a page for.
    """

    pool: PoolSpec
    tokens_per_page: int
    page_units: int
    columns: tuple[Column, ...]

    @property
    def block_size(self) -> int:
        """Tokens of a block, as of the other layouts."""
        return self.tokens_per_page


Layout: TypeAlias = BlockLayout | ExtentLayout | PageLayout
