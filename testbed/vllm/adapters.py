"""The memory of LoRA adapters: vLLM keeps max_loras slots of the largest rank for each module that
it can adapt, whether or not a request names an adapter.

A slot of a module has A, rank x inputs, and B, outputs x rank, in the adapters' type. Q, K and V
are three modules, gate and up two. With tensor parallelism a module that is divided by its outputs
divides its B, one that is divided by its inputs its A; --fully-sharded-loras divides the other
matrix too. The embedding and the output projection are whole on every GPU.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from testbed.core.specs import ModelSpec
from testbed.vllm.option_reader import OptionReader

ENABLE, SHARDED, HELD = "--enable-lora", "--fully-sharded-loras", "--max-cpu-loras"
RANKS = {  # of MaxLoRARanks in vLLM's LoRAConfig
    str(rank): rank for rank in (1, 8, 16, 32, 64, 128, 256, 320, 512)
}
USUAL_RANK, USUAL_SLOTS = 16, 1
DTYPE_BYTES = {"auto": None, "float16": 2, "bfloat16": 2}


class Family(NamedTuple):
    """Layers of a family of models that can be adapted, as adapters.toml has them."""

    embeddings: bool
    is_fused: bool
    types: tuple[str, ...]
    names: tuple[str, ...]


class Module(NamedTuple):
    """Inputs and outputs of a module on each GPU. a_parts: its A matrices. divides_outputs: it is
    divided by its outputs, else by its inputs; None: it is whole.
    """

    inputs: int
    outputs: int
    a_parts: int
    divides_outputs: bool | None


class Slots(NamedTuple):
    """The slots of a server: how many, their rank, and whether A and B are both divided."""

    num_slots: int
    rank: int
    is_sharded: bool
    value_bytes: int


@cache
def families() -> Mapping[str, Family]:
    """The families whose adapters are known, by name."""
    path = Path(__file__).with_name("adapters.toml")
    return {name: Family(**values) for name, values in tomllib.loads(path.read_text()).items()}


def family_of(model: ModelSpec, model_type: str | None) -> Family | None:
    """The family of a config.json's model_type or, without one, of a shape that ships; None: its
    adapters are not known.
    """
    for family in families().values():
        is_named = model_type is None and model.name.startswith(tuple(family.names))
        if is_named or model_type in family.types:
            return family
    return None


def adapter_bytes(
    reader: OptionReader, model: ModelSpec, num_gpus: int, model_type: str | None = None
) -> int:
    """Bytes of the adapters' slots on each GPU; 0 without --enable-lora.

    model_type: of the config.json that the shape was read from; None: the shape ships. Raises
    InputError for a model whose adapters are not known, and for options that vLLM refuses.
    """
    if not reader.is_on(ENABLE):
        return 0
    family = family_of(model, model_type)
    if family is None or model.experts or model.states or model.latent or model.chunks:
        raise reader.refusal(
            ENABLE,
            f"which modules of {model.name} vLLM adapts is not known here",
            "leave it out to see the server without adapters",
        )
    slots = _slots(reader, model, num_gpus)
    values = sum(_values(module, slots, num_gpus) for module in _modules(model, family, num_gpus))
    return slots.num_slots * values * slots.value_bytes


def _slots(reader: OptionReader, model: ModelSpec, num_gpus: int) -> Slots:
    rank = reader.one_of("--max-lora-rank", {"auto": USUAL_RANK, **RANKS}) or USUAL_RANK
    is_sharded = reader.is_on(SHARDED)
    if is_sharded and rank % num_gpus:
        raise reader.does_not_start(SHARDED, f"rank {rank} is not divisible by {num_gpus} GPUs")
    dtype_bytes = reader.one_of("--lora-dtype", DTYPE_BYTES) or model.dtype_bytes
    num_slots = reader.whole("--max-loras", USUAL_SLOTS)
    in_host_memory = reader.whole(HELD, num_slots)
    if in_host_memory < num_slots:
        raise reader.does_not_start(HELD, f"{in_host_memory} is below --max-loras {num_slots}")
    return Slots(num_slots, rank, is_sharded, dtype_bytes)


def _values(module: Module, slots: Slots, num_gpus: int) -> int:
    """Values of A and B of one slot of a module on each GPU."""
    a = module.a_parts * slots.rank * module.inputs
    b = module.outputs * slots.rank
    if not slots.is_sharded or module.divides_outputs is None:
        return a + b
    return a // num_gpus + b if module.divides_outputs else a + b // num_gpus


def _modules(model: ModelSpec, family: Family, num_gpus: int) -> Iterator[Module]:
    """Every module that is adapted, over all layers."""
    hidden, ffn = model.hidden_size, model.ffn_size // num_gpus
    queries = model.num_heads * model.head_size // num_gpus
    kv = max(1, model.num_kv_heads // num_gpus) * model.head_size
    parts, inner = (1, 1) if family.is_fused else (3, model.ffn_matrices - 1)
    for _ in range(model.num_layers):
        yield Module(hidden, queries + 2 * kv, parts, divides_outputs=True)
        yield Module(queries, hidden, 1, divides_outputs=False)
    for _ in range(model.ffn_layers):
        yield Module(hidden, (model.ffn_matrices - 1) * ffn, inner, divides_outputs=True)
        yield Module(ffn, hidden, 1, divides_outputs=False)
    if family.embeddings:
        yield Module(model.vocab_size, hidden, 1, divides_outputs=None)
        yield Module(hidden, model.vocab_size, 1, divides_outputs=None)
