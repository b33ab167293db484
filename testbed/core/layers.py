"""Layers of models beyond one full attention and one feed-forward network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Unit, doc

from testbed.core.config_model import model
from testbed.core.errors import InputError
from testbed.core.units import Count, NumTokens, Positive, PositiveCount, PositiveTokens


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


def layers_of_page(groups: Sequence[KvGroup]) -> int:
    """The layers in a page of vLLM: those of the smallest group, or those of the largest if it has
    less than half more (`_get_kv_cache_groups_uniform_page_size`).
    """
    counts = [group.num_layers for group in groups]
    return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)


@model
class Window:
    """Attention layers that read the last tokens only (sliding window).

    Gemma-4's have other heads of K and V than its layers of full attention.
    """

    size: Annotated[PositiveTokens, doc("tokens that such a layer reads")]
    num_layers: Annotated[PositiveCount, doc("layers with a window")]
    num_kv_heads: Annotated[PositiveCount | None, doc("heads of K and V; null: the model's")] = None
    head_size: Annotated[PositiveCount | None, doc("values of a head; null: the model's")] = None
    is_required: Annotated[
        bool | None, doc("whether vLLM fails if windows are switched off (Cohere2)")
    ] = None


@model
class Chunks:
    """Attention layers whose tokens read those of their own chunk only (Llama-4).

    vLLM's pages count them; no policy simulates them, which stores all their tokens.
    """

    size: Annotated[PositiveTokens, doc("tokens of a chunk")]
    num_layers: Annotated[PositiveCount, doc("layers with chunks")]


@model
class Rope:
    """Lengths that follow from a rope which stretches positions, if they differ from max_len."""

    usual_len: Annotated[
        PositiveTokens | None, doc("vLLM's longest sequence by default (LongRoPE); null: max_len")
    ] = None
    yarn_len: Annotated[
        PositiveTokens | None,
        doc("max_len in releases of vLLM that multiply a YaRN rope's positions; null: max_len"),
    ] = None
    is_incomplete: Annotated[
        bool | None, doc("whether the YaRN rope says no original length, without which they end")
    ] = None


@model
class Latent:
    """Multi-head latent attention (DeepSeek-V2): a layer caches one vector for each token.

    The vector has kv_rank + rope_size values. head_size of the model is the part of a query
    without position.
    """

    kv_rank: Annotated[PositiveCount, doc("rank of the latent vector of K and V")]
    rope_size: Annotated[Count, doc("values of the part of a key with position")]
    v_size: Annotated[PositiveCount, doc("values of a head's value vector")]
    q_rank: Annotated[Count, doc("rank of the query projection; 0: a full matrix")] = 0
    index_bytes: Annotated[
        Count, Unit("bytes"), doc("of a token's key of the indexer (sparse attention); 0: none")
    ] = 0
    index_params: Annotated[Count, doc("weights of a layer's indexer")] = 0
    prefers_fp8: Annotated[
        bool | None, doc("whether vLLM caches it in FP8 on Blackwell unless configured (GLM-5)")
    ] = None
    packed_bytes: Annotated[
        Count,
        Unit("bytes"),
        doc("of a vector that is cached with scales of its own; 0: its values alone"),
    ] = 0
    index_pool: Annotated[
        Count,
        doc("tokens that a key of the indexer stands for, those that are not pooled yet apart"),
    ] = 0


@model
class Experts:
    """A mixture of experts in the feed-forward layers behind the first num_dense_layers: in the
    last one of each `step` layers.

    A token goes through per_token of `count` experts, and through the columns that all tokens
    share.
    """

    count: Annotated[PositiveCount, doc("experts of a layer")]
    per_token: Annotated[PositiveCount, doc("experts that a token goes through")]
    size: Annotated[PositiveCount, doc("columns of an expert")]
    shared_size: Annotated[Count, doc("columns that all tokens share")] = 0
    num_dense_layers: Annotated[Count, doc("first layers, which have no experts")] = 0
    step: Annotated[PositiveCount, doc("layers of which one has experts, behind those")] = 1
    bits: Annotated[
        Positive | None, doc("bits of an expert's weight; null: as the other layers")
    ] = None
    latent_size: Annotated[
        Count,
        doc(
            "values of the vector that experts work on, before and behind which each GPU projects; "
            "0: hidden_size"
        ),
    ] = 0


@model
class States:
    """Layers that keep a state for each sequence, not K and V of its tokens.

    Mamba-2 and gated delta net have state_bytes. With num_tokens in their place a layer keeps K
    and V of that many tokens, those of an image, and reads them in every step (cross-attention).
    """

    num_layers: Annotated[PositiveCount, doc("layers with a state")]
    state_bytes: Annotated[Count, Unit("bytes"), doc("of a layer's state of a sequence")] = 0
    params: Annotated[Count, doc("weights of a layer without its feed-forward network")] = 0
    num_tokens: Annotated[NumTokens, doc("tokens whose K and V are the state")] = 0
    draft_bytes: Annotated[
        Count, Unit("bytes"), doc("that a layer's state is larger by for each draft token")
    ] = 0
    chunk_size: Annotated[
        Count, doc("tokens of a chunk of Mamba-2's prefill kernel; 0: a gated delta net")
    ] = 0
    untyped_values: Annotated[
        Count,
        doc("values of a state counted with the model's type, which the model's file does not say"),
    ] = 0
    num_heads: Annotated[
        Count, doc("heads of a gated delta net's values, each with two gates; 0: not known")
    ] = 0
    num_groups: Annotated[
        Count, doc("groups of a Mamba-2 layer, which vLLM divides among GPUs; 0: it has none")
    ] = 0

    def __post_init__(self) -> None:
        if (self.state_bytes > 0) == (self.num_tokens > 0):
            raise InputError(
                key="states",
                problem=f"state_bytes={self.state_bytes}, num_tokens={self.num_tokens}",
                remedy="give one of them",
            )
