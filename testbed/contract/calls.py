"""Random sequences of calls to a memory policy, as values that hypothesis can shrink."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, slots=True)
class Admit:
    """A new sequence of prompt_len tokens that will end with output_len more.

    Its first `shared` tokens are those of `story`, which other prompts may share too. Room is asked for its first
    `chunk` tokens, 0 for the whole prompt.
    """

    prompt_len: int
    output_len: int
    story: int = 0
    shared: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class AdmitAll:
    """num_seqs new sequences of one prompt, each with num_generated tokens of its own that were lost by recompute."""

    prompt: Admit
    num_seqs: int
    num_generated: int


@dataclass(frozen=True, slots=True)
class Extend:
    """num_tokens more for the resident sequences that `mask` selects."""

    mask: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """num_tokens more for the whole lockstep batch."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class Join:
    """A resident sequence joins the lockstep batch, or leaves it if it is a member."""

    pick: int


@dataclass(frozen=True, slots=True)
class Release:
    """A resident or swapped sequence ends."""

    pick: int


@dataclass(frozen=True, slots=True)
class Fork:
    """A resident sequence gets a child."""

    pick: int


@dataclass(frozen=True, slots=True)
class Refork:
    """A resident relative of equal length gives up its tokens and goes on with those of the picked sequence."""

    pick: int


@dataclass(frozen=True, slots=True)
class Move:
    """All relatives of a sequence go to the other tier."""

    pick: int


Call: TypeAlias = Admit | AdmitAll | Extend | Step | Join | Release | Fork | Refork | Move


def call_sequences(max_len: int, max_calls: int = 40) -> "SearchStrategy[list[Call]]":
    """Lists of calls for a pool whose longest sequence is max_len tokens."""
    import hypothesis.strategies as st

    picks = st.integers(0, 7)
    lengths = st.integers(1, max_len // 2)
    plain = st.builds(Admit, lengths, lengths)
    told = st.builds(Admit, lengths, lengths, st.integers(0, 1), lengths, st.just(0) | lengths)
    admit = plain | told
    later = st.one_of(
        admit,
        told,
        st.builds(AdmitAll, told, st.integers(2, 3), lengths),
        st.builds(Step, st.integers(1, 40)),
        st.builds(Join, picks),
        st.builds(Extend, st.integers(1, 255), st.integers(1, 20)),
        st.builds(Release, picks),
        st.builds(Release, picks),
        st.builds(Fork, picks),
        st.builds(Refork, picks),
        st.builds(Move, picks),
    )
    # A crowd to begin with: most of what can break needs a pool under pressure.
    crowd = st.lists(admit | st.builds(Join, picks), max_size=12)
    # Left alone, hypothesis draws about five calls: too few for anything to be evicted and asked for again.
    calls = st.lists(later, max_size=max_calls) | st.lists(later, min_size=max_calls // 2, max_size=max_calls)
    return st.builds(lambda first, then: [*first, *then], crowd, calls)
