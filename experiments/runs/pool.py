"""The pools that a policy manages: from the server's memory, or from a number of blocks."""

from omegaconf import DictConfig

from testbed.core.errors import InputError
from testbed.core.specs import GIB, ModelSpec, ServerSpec
from testbed.memory.policy import PoolSpec, host


def make_pool(config: DictConfig, model: ModelSpec, server: ServerSpec) -> PoolSpec:
    """The device's pool and the host's; config.swap_space_gib is that of each GPU."""
    host_slots = int(config.swap_space_gib * GIB) * server.num_gpus // model.kv_bytes_per_token
    layer_bytes = model.kv_bytes_per_token // model.num_layers
    tiers = host(host_slots, server.gpu.host_bandwidth)
    num_slots = _slots_of_blocks(config, model, server) or server.kv_slots(model)
    num_slots -= _null_slots(config, num_slots)
    return PoolSpec(num_slots, model.max_len, tiers, layer_bytes, model.num_layers, server.num_gpus)


def _null_slots(config: DictConfig, num_slots: int) -> int:
    """Slots of the blocks that the server counts and never gives to a sequence (config.null_blocks; vLLM V1: one)."""
    null_blocks, block_size = config.get("null_blocks", 0), config.policy.get("block_size")
    if type(null_blocks) is not int:
        raise InputError(f"null_blocks is {null_blocks!r}; it must be a whole number of blocks")
    slots = null_blocks * block_size if type(block_size) is int else 0  # any other size is refused by the policy
    if slots >= num_slots:
        raise InputError(f"null_blocks is {null_blocks}, and the pool has no more than these; give it more blocks")
    return slots


def _slots_of_blocks(config: DictConfig, model: ModelSpec, server: ServerSpec) -> int | None:
    """Slots of a pool that is given in blocks of the policy's size; None where it is not."""
    num_blocks, block_size = config.server.get("num_blocks"), config.policy.get("block_size")
    if num_blocks is None:
        return None
    if type(num_blocks) is not int or num_blocks < 1:
        raise InputError(f"server.num_blocks is {num_blocks!r}; it must be a whole number of blocks, or null")
    if block_size is None:
        raise InputError("server.num_blocks needs a policy with a block_size; without one give server.kv_memory_gib")
    if model.name in server.kv_memory_gib and server.kv_slots(model, block_size) != num_blocks * block_size:
        raise InputError(
            f"server.num_blocks is {num_blocks}, but server.kv_memory_gib has {model.name}'s pool, "
            f"{server.kv_slots(model, block_size) // block_size} blocks: ~server.kv_memory_gib leaves only the blocks"
        )
    return int(num_blocks * block_size)
