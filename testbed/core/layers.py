"""What the layers of today's models are made of beyond one full attention and one feed-forward
network.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from testbed.core.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers whose cache has one form, in bytes a token or a sequence. window: tokens that one
    reads; None: all.
    """

    name: str
    num_layers: int
    slot_bytes: int
    window: int | None = None
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """num_layers of the attention layers read the last `size` tokens only (sliding window)."""

    size: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2): a layer caches one vector of kv_rank + rope_size
    values a token.

    head_size of the model is the part of a query without position; v_size is the size of a head's
    value. q_rank is the rank of the query projection, 0 where it is a full matrix.
    """

    kv_rank: int
    rope_size: int
    v_size: int
    q_rank: int = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in every feed-forward layer but the first num_dense_layers.

    A token goes through per_token of `count` experts of `size` columns, and through shared_size
    columns that all tokens share. bits: of an expert's weight, None for those of the model's other
    layers.
    """

    count: int
    per_token: int
    size: int
    shared_size: int = 0
    num_dense_layers: int = 0
    bits: float | None = None


@dataclass(frozen=True, slots=True)
class States:
    """num_layers of the layers keep state_bytes a sequence in place of its tokens' K and V
    (Mamba-2, gated delta net).

    params: weights of such a layer, its feed-forward network not included. num_tokens in place of
    state_bytes: what a layer keeps is K and V of so many tokens, those of an image, which every
    step reads (cross-attention).
    """

    num_layers: int
    state_bytes: int = 0
    params: int = 0
    num_tokens: int = 0

    def __post_init__(self) -> None:
        if (self.state_bytes > 0) == (self.num_tokens > 0):
            raise InputError(
                f"states: state_bytes={self.state_bytes}, num_tokens={self.num_tokens} (give one "
                f"of them)"
            )


def spec_of(kind: type[T], values: Any, where: object) -> T:
    """The spec whose fields `values` gives by name; `where` stands before the InputError of any
    that is missing.
    """
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{where}: not the values of a {kind.__name__}: {error}") from None


def layers_of(kind: type[T], value: T | Mapping[str, Any] | None, where: str) -> T | None:
    """The value, or one of `kind` from a mapping of its fields; every number must be in range."""
    if value is None:
        return None
    made = spec_of(kind, value, where) if isinstance(value, Mapping) else value
    for one in fields(kind):  # type: ignore[arg-type]
        number, least = getattr(made, one.name), 0 if one.default == 0 else 1
        if one.name != "bits" and (type(number) is not int or number < least):
            raise InputError(
                f"{where}.{one.name}={number!r}: must be a whole number of at least {least}"
            )
    return made
