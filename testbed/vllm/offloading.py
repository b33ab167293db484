"""The CPU cache of vLLM's own OffloadingConnector."""

from typing import Any

from testbed.core.slots import ceil_div
from testbed.core.specs import GIB
from testbed.vllm.connector import ALIGNMENT, SIZE, Connector, LowerCache
from testbed.vllm.option_reader import OptionReader
from testbed.vllm.pages import Pages

# Values of kv_connector_extra_config that say what vLLM does without them.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "blocks_per_chunk": (1,),
    "eviction_policy": ("lru",),
    "spec_name": ("CPUOffloadingSpec",),
    "store_threshold": (0, 1),
    "sync_load_budget_bytes": (0,),
}


def offloading_of(
    reader: OptionReader, connector: Connector, pages: Pages, num_gpus: int
) -> LowerCache:
    """The cache of a command. Raises InputError for one that is not modelled."""
    given, extra = connector.option, dict(connector.values)
    num_bytes = _cpu_bytes(reader, given, extra)
    block_bytes = pages.page_bytes * num_gpus
    num_blocks = int(num_bytes) // (ceil_div(block_bytes, ALIGNMENT) * ALIGNMENT)
    if not num_blocks:
        raise reader.refusal(given, f"holds no block of {block_bytes:,} bytes", "a larger one")
    parameters = {"offload_prompt_only": bool(extra.pop("offload_prompt_only", True))}
    _check_extra(reader, given, extra, pages.block_size)
    return LowerCache(num_blocks, num_blocks * block_bytes, "vllm_offloading", parameters)


def _cpu_bytes(reader: OptionReader, given: str, extra: dict[str, Any]) -> float:
    """The bytes of the cache over all GPUs. Raises InputError if vLLM does not start."""
    num_bytes = extra.pop("cpu_bytes_to_use", 0)
    if (size_gib := reader.number(SIZE, "GiB; 200 GB are 186.3")) is not None:
        num_bytes = size_gib * GIB
    if isinstance(num_bytes, bool) or not isinstance(num_bytes, int | float) or num_bytes <= 0:
        raise reader.does_not_start(given, "cpu_bytes_to_use must be specified")
    return num_bytes


def _check_extra(reader: OptionReader, given: str, extra: dict[str, Any], block_size: int) -> None:
    """Raise InputError for a value of the connector that is not modelled."""
    neutral = {**NEUTRAL, "block_size": (block_size,)}
    for name, value in extra.items():
        if value not in neutral.get(name, ()):
            raise reader.refusal(
                given, f"{name}={value}: is not modelled", "leave it out of the connector's values"
            )
