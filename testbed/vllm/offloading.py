"""vLLM's KV cache below the device, as a command asks for it (--kv-offloading-size, or
--kv-transfer-config with the OffloadingConnector).
"""

import json
from typing import Any, NamedTuple

from testbed.core.slots import ceil_div
from testbed.core.specs import GIB
from testbed.vllm.option_reader import OptionReader
from testbed.vllm.pages import Pages
from testbed.vllm.releases import NEWEST

SIZE, BACKEND, TRANSFER = "--kv-offloading-size", "--kv-offloading-backend", "--kv-transfer-config"
ALIGNMENT = 4096  # bytes to which vLLM rounds a chunk up (BLOCK_SIZE_ALIGNMENT)
CONNECTOR = "OffloadingConnector"
# Values of kv_connector_extra_config that say what vLLM does without them.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "blocks_per_chunk": (1,),
    "eviction_policy": ("lru",),
    "spec_name": ("CPUOffloadingSpec",),
    "store_threshold": (0, 1),
    "sync_load_budget_bytes": (0,),
}


class Offloading(NamedTuple):
    """The CPU cache of a server.

    num_blocks: that it holds. bytes: of the blocks, without what fills each up. prompt_only: no
    generated token is stored.
    """

    num_blocks: int
    num_bytes: int
    prompt_only: bool


def offloading_of(reader: OptionReader, pages: Pages, num_gpus: int) -> Offloading | None:
    """The CPU cache that a command asks for; None: it asks for none. Raises InputError for one that
    is not modelled.
    """
    if reader.value(SIZE) is None and reader.value(TRANSFER) is None:
        return None
    given, extra = _connector(reader)
    if not reader.release.offloads_by_request:
        raise reader.refusal(
            given,
            f"vLLM {reader.release.number} stores and evicts otherwise: not modelled",
            f"release={NEWEST.number}",
        )
    if pages.is_grouped:
        raise reader.refusal(given, "is not modelled beside windows or states", "leave it out")
    if reader.value("--speculative-config") is not None:
        raise reader.refusal(given, "is not modelled beside drafts", "leave one out")
    num_bytes = _cpu_bytes(reader, given, extra)
    block_bytes = pages.page_bytes * num_gpus
    num_blocks = int(num_bytes) // (ceil_div(block_bytes, ALIGNMENT) * ALIGNMENT)
    if not num_blocks:
        raise reader.refusal(given, f"holds no block of {block_bytes:,} bytes", "a larger one")
    is_prompt_only = bool(extra.pop("offload_prompt_only", True))
    _check_extra(reader, given, extra, pages.block_size)
    return Offloading(num_blocks, num_blocks * block_bytes, is_prompt_only)


def _connector(reader: OptionReader) -> tuple[str, dict[str, Any]]:
    """The option that asks for the cache, and the connector's own values."""
    backend = reader.value(BACKEND)
    if backend not in (None, "native"):
        raise reader.refusal(BACKEND, "is not modelled: only vLLM's own is (native)")
    if reader.value(TRANSFER) is None:
        return SIZE, {}
    try:
        values = json.loads(reader.value(TRANSFER) or "")
        extra = dict(values.pop("kv_connector_extra_config", {}))
        connector = values.pop("kv_connector", CONNECTOR if reader.value(SIZE) else None)
    except (ValueError, AttributeError, TypeError):
        raise reader.refusal(TRANSFER, "is no table in JSON") from None
    if connector != CONNECTOR:
        raise reader.refusal(
            TRANSFER,
            f"kv_connector {connector}: is not modelled",
            f"choose {CONNECTOR} or LMCacheConnectorV1",
        )
    if values.pop("kv_role", "kv_both") != "kv_both":
        raise reader.refusal(TRANSFER, "kv_role: only kv_both is modelled")
    if values:
        raise reader.refusal(TRANSFER, f"{', '.join(values)}: is not modelled", "leave it out")
    return TRANSFER, extra


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
