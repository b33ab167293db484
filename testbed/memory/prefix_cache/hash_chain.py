"""The content of a full block, and the chained hash by which it is known: a block is equal to
another only if all blocks before it are too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, repeat
from typing import TypeAlias

from testbed.core.errors import InputError
from testbed.core.sequence import Sequence as Seq

Content: TypeAlias = int | tuple[int, ...] | tuple[tuple[int], int]
HashOf: TypeAlias = Callable[[tuple[int, Content]], int]


def chained(before: int, content: Content, hash_of: HashOf) -> int:
    """The hash of a block: of the hash of the block before it, and of its own content."""
    return hash_of((before, content))


def hash_chain(root: int, contents: Iterable[Content], hash_of: HashOf) -> Iterator[int]:
    """The hash of every block of a prompt, the first one's predecessor being `root`."""
    code = root
    for content in contents:
        code = hash_of((code, content))  # as `chained`
        yield code


def block_contents(
    ids: Sequence[int], tokens_per_id: int, num_tokens: int, block_size: int
) -> Sequence[Content]:
    """Contents of the full blocks of num_tokens tokens: several ids, one id, or one of the equal
    parts of an id.
    """
    full = num_tokens // block_size
    if block_size == tokens_per_id:
        return ids[:full]
    if block_size % tokens_per_id == 0:
        width = block_size // tokens_per_id
        each = iter(ids[: full * width])
        return [*zip(*[each] * width, strict=True)]
    if tokens_per_id % block_size == 0:
        parts = tokens_per_id // block_size
        whole = ids[: -(-full // parts)]
        return [part for i in whole for part in range(i * parts, (i + 1) * parts)][:full]
    raise InputError(
        key="block_size",
        value=block_size,
        problem=f"does not go with a trace whose ids name {tokens_per_id} tokens each",
        remedy="one must divide the other",
    )


def with_next_ids(
    contents: Sequence[Content], ids: Sequence[int], tokens_per_id: int, block_size: int
) -> list[Content]:
    """The contents of blocks with the id of the token behind each, which the ids must name too."""
    own = [(content,) if isinstance(content, int) else content for content in contents]
    behind = [ids[(i + 1) * block_size // tokens_per_id] for i in range(len(own))]
    return [(*content, next_id) for content, next_id in zip(own, behind, strict=True)]


def own_contents(seq: Seq, first: int) -> Iterator[Content]:
    """Contents of its blocks from `first` on, without end; no other sequence has the same."""
    return zip(repeat((seq.seq_id,)), count(first))


def generated_contents(
    seq: Seq, block_size: int, first: int, *, names_next: bool = False
) -> Iterator[Content]:
    """The content of its blocks from `first` on, without end; none of them lies in the prompt
    alone.

    If the trace names its answer, a later prompt that contains it has the same contents; else no
    other sequence has. names_next: the id of the token behind a block is part of its content.
    """
    if seq.answer_id is None:
        return own_contents(seq, first)
    return _named_contents(seq, block_size, first, names_next)


def _named_contents(seq: Seq, block_size: int, first: int, names_next: bool) -> Iterator[Content]:
    """`generated_contents` if the trace names the answer."""
    each = seq.tokens_per_id
    width, parts = block_size // each, each // block_size
    for block in count(first):
        if width > 1:
            content: Content = tuple(map(seq.id_at, range(block * width, (block + 1) * width)))
        elif width:
            content = seq.id_at(block)
        else:
            content = seq.id_at(block // parts) * parts + block % parts
        if names_next:
            own = (content,) if isinstance(content, int) else content
            content = (*own, seq.id_at((block + 1) * block_size // each))
        yield content
