"""The KV cache below the device that a vLLM command asks for: by which option, and by which of
vLLM's connectors (--kv-offloading-size, or --kv-transfer-config).
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from testbed.vllm.option_reader import OptionReader
from testbed.vllm.pages import Pages
from testbed.vllm.releases import NEWEST

SIZE, BACKEND, TRANSFER = "--kv-offloading-size", "--kv-offloading-backend", "--kv-transfer-config"
OFFLOADING, LMCACHE = "OffloadingConnector", "LMCacheConnectorV1"
ALIGNMENT = 4096  # bytes to which both round a chunk up (BLOCK_SIZE_ALIGNMENT)


class Connector(NamedTuple):
    """option: that asks for the cache. name: of vLLM's class. values: the connector's own."""

    option: str
    name: str
    values: dict[str, Any]


class LowerCache(NamedTuple):
    """The cache of a server.

    num_blocks: that it holds. num_bytes: of these blocks over all GPUs, without what fills each
    chunk up. policy: our option for it, with its parameters.
    """

    num_blocks: int
    num_bytes: int
    policy: str
    parameters: Mapping[str, Any]


def connector_of(reader: OptionReader) -> Connector | None:
    """The connector of a command; None: it asks for no cache. Raises InputError for one that is not
    modelled.
    """
    size, given = reader.value(SIZE), reader.value(TRANSFER)
    if size is None and given is None:
        return None
    if reader.value(BACKEND) not in (None, "native"):
        raise reader.refusal(BACKEND, "is not modelled: only vLLM's own is (native)")
    if given is None:
        return Connector(SIZE, OFFLOADING, {})
    try:
        values = json.loads(given)
        own = dict(values.pop("kv_connector_extra_config", {}))
        name = values.pop("kv_connector", OFFLOADING if size else None)
    except (ValueError, AttributeError, TypeError):
        raise reader.refusal(TRANSFER, "is no table in JSON") from None
    known = (OFFLOADING, LMCACHE) if size is None else (OFFLOADING,)
    if name not in known:
        problem = f"kv_connector {name}: is not modelled"
        raise reader.refusal(TRANSFER, problem, f"choose {' or '.join(known)}")
    if values.pop("kv_role", "kv_both") != "kv_both":
        raise reader.refusal(TRANSFER, "kv_role: only kv_both is modelled")
    if values:
        raise reader.refusal(TRANSFER, f"{', '.join(values)}: is not modelled", "leave it out")
    return Connector(TRANSFER, name, own)


def check_connector(
    reader: OptionReader, connector: Connector, pages: Pages, *, caches: bool
) -> None:
    """Raise InputError for a release or an option beside which no such cache is modelled."""
    option, number = connector.option, reader.release.number
    if not reader.release.offloads_by_request:
        problem = f"is not modelled beside vLLM {number}, which stores and evicts otherwise"
        raise reader.refusal(option, problem, f"release={NEWEST.number}")
    if pages.is_grouped:
        raise reader.refusal(option, "is not modelled beside windows or states", "leave it out")
    if reader.value("--speculative-config") is not None:
        raise reader.refusal(option, "is not modelled beside drafts", "leave one out")
    if not caches:
        raise reader.refusal(
            "--enable-prefix-caching", "is off: a cache below the device is modelled with it alone"
        )
