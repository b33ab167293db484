"""The linear layers of a shape by their names in vLLM, with the matrices that each consists of."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from testbed.core.layer_order import letters_of
from testbed.core.layers import States
from testbed.core.specs import ModelSpec

# Names of the parts of a layer: attention, a dense network, routed experts, shared ones, a state
NAMES = ("self_attn", "mlp", "mlp.experts", "mlp.shared_experts", "linear_attn")
LLAMA_4 = ("self_attn", *("feed_forward" + end for end in ("", ".experts", ".shared_expert")), "")
IN_BLOCK = ("self_attn", "mlp", "block_sparse_moe.experts", "", "")
ONE_SHARED = ("self_attn", "mlp", "mlp.experts", "mlp.shared_expert", "linear_attn")
MIXER = ("mixer", "mixer", "mixer.experts", "mixer.shared_experts", "mixer")
NAMES_OF = {
    "llama4": LLAMA_4,
    "nemotron_h": MIXER,
    **dict.fromkeys(("mixtral", "phimoe", "granitemoe"), IN_BLOCK),
    **dict.fromkeys(("qwen2_moe", "qwen3_next", "qwen3_5_moe"), ONE_SHARED),
}
# The matrices of an expert, and their names in files of some types, which newer releases match
OF_EXPERT, NUMBERED = ("gate_proj", "up_proj", "down_proj"), ("w1", "w2", "w3")
WITH_NUMBERS = ("mixtral", "minimax_m2", "phimoe")
ONE_MATRIX_OF_GATES = ("qwen3_next",)  # of a gated delta net; other types have two
OTHERWISE_NAMED = ("opt", "gpt_neox", "phi", "starcoder2", "gpt_oss")
# Whose class gives the output projection no method of quantisation
WHOLE_HEAD = ("gpt_oss", "opt", "phimoe", "qwen3_next")
Rows: TypeAlias = tuple[tuple[int, int], ...]


class Linear(NamedTuple):
    """A layer of vLLM's. parts: the matrices in a checkpoint that it consists of. is_routed: the
    experts of a layer, all together. of_expert: the matrices of the first one, by each name.

    columns: inputs that GPUs divide; 0: each GPU has all. rows: outputs that they divide, of each
    matrix: the heads or values that stay whole, and the outputs of one.
    """

    name: str
    parts: tuple[str, ...]
    num_params: int
    is_routed: bool = False
    columns: int = 0
    rows: Rows = ()
    of_expert: tuple[str, ...] = ()


def linears_of(shape: ModelSpec, kind: str) -> Iterator[Linear]:
    """The linear layers of a model of this type, but for routers, embedding and output."""
    attention, dense, routed, shared, state = NAMES_OF.get(kind, NAMES)
    experts, num_ffn = shape.experts, 0
    for number, letter in enumerate(letters_of(shape)):
        at = f"model.layers.{number}."
        if letter == "s" and shape.states:
            yield from _state(shape.states, shape.hidden_size, at + state, kind)
        elif letter not in "-e":
            yield from _attention(shape, at + attention, letter)
        if shape.num_ffn_layers is not None and letter not in "-e":
            continue
        num_ffn += 1
        num_behind = num_ffn - experts.num_dense_layers if experts else 0
        has_experts = experts and num_behind > 0 and num_behind % experts.step == 0
        if not experts or letter == "-" or (not has_experts and letter != "e"):
            yield from _network(shape, at + dense, shape.ffn_size)
            continue
        num_params = experts.count * shape.expert_params
        yield _routed(at + routed, num_params, experts.size, kind)
        if experts.shared_size:
            yield from _network(shape, at + shared, experts.shared_size)


def _routed(name: str, num_params: int, columns: int, kind: str) -> Linear:
    matrices = (*OF_EXPERT, *(NUMBERED if kind in WITH_NUMBERS else ()))
    first = tuple(f"{name}.0.{matrix}" for matrix in matrices)
    return Linear(name, (name,), num_params, True, columns=columns, of_expert=first)


def _plain(module: str, name: str, num_params: int, columns: int = 0, rows: Rows = ()) -> Linear:
    return Linear(f"{module}.{name}", (f"{module}.{name}",), num_params, False, columns, rows)


def _fused(
    module: str, name: str, parts: tuple[str, ...], num_params: int, rows: Rows = ()
) -> Linear:
    named = tuple(f"{module}.{part}" for part in parts)
    return Linear(f"{module}.{name}", named, num_params, rows=rows)


def _state(states: States, hidden_size: int, module: str, kind: str) -> Iterator[Linear]:
    """The gates of a delta net's heads, and all other matrices of a layer with a state."""
    heads = states.num_heads
    gates = 2 * heads * hidden_size
    yield _plain(module, "in_proj_qkvz", states.params - gates)
    if heads and kind in ONE_MATRIX_OF_GATES:
        yield _plain(module, "in_proj_ba", gates, rows=((2 * heads, 1),))
    elif heads:
        yield _fused(module, "in_proj_ba", ("in_proj_b", "in_proj_a"), gates, 2 * ((heads, 1),))


def _attention(shape: ModelSpec, module: str, letter: str) -> Iterator[Linear]:
    if shape.latent:
        yield from _latent(shape, module)
        return
    heads, size = shape.num_kv_heads, shape.head_size
    if letter == "w":
        heads, size = shape.heads_of_windows()
    queries = shape.num_heads * (2 if shape.gated_attention else 1)
    keys = heads * (1 if shape.shared_kv and letter == "f" else 2)
    of_head = shape.hidden_size * size
    rows, parts = ((queries, size), *2 * ((heads, size),)), ("q_proj", "k_proj", "v_proj")
    yield _fused(module, "qkv_proj", parts, (queries + keys) * of_head, rows)
    yield _plain(module, "o_proj", shape.num_heads * of_head, shape.num_heads * size)


def _latent(shape: ModelSpec, module: str) -> Iterator[Linear]:
    latent, hidden, heads = shape.latent, shape.hidden_size, shape.num_heads
    assert latent is not None
    query, key_and_value = shape.head_size + latent.rope_size, shape.head_size + latent.v_size
    queries, rows = heads * query, ((heads, query),)
    narrow = latent.kv_rank + latent.rope_size
    if latent.q_rank:
        first = ("q_a_proj", "kv_a_proj_with_mqa")
        yield _fused(module, "fused_qkv_a_proj", first, hidden * (latent.q_rank + narrow))
        yield _plain(module, "q_b_proj", latent.q_rank * queries, rows=rows)
    else:
        yield _plain(module, "q_proj", hidden * queries, rows=rows)
        yield _plain(module, "kv_a_proj_with_mqa", hidden * narrow)
    both, values = heads * key_and_value, heads * latent.v_size
    yield _plain(module, "kv_b_proj", latent.kv_rank * both, rows=((heads, key_and_value),))
    yield _plain(module, "o_proj", values * hidden, values)
    if latent.index_params:
        yield _plain(module, "indexer.wq_b", latent.index_params)


def _network(shape: ModelSpec, module: str, columns: int) -> Iterator[Linear]:
    matrix, rows = shape.hidden_size * columns, ((columns, 1),)
    if shape.ffn_matrices == 3:
        yield _fused(module, "gate_up_proj", ("gate_proj", "up_proj"), 2 * matrix, 2 * rows)
    else:
        yield _plain(module, "up_proj", matrix, rows=rows)
    yield _plain(module, "down_proj", matrix, columns)
