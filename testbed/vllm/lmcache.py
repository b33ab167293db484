"""LMCache's local CPU cache in vLLM's server, as a command asks for it (--kv-transfer-config with
LMCacheConnectorV1; LMCache 0.5.6).
"""

from collections.abc import Mapping
from typing import Any

from testbed.core.slots import ceil_div
from testbed.core.specs import GIB
from testbed.vllm.connector import ALIGNMENT, TRANSFER, Connector, LowerCache
from testbed.vllm.option_reader import LMCACHE, OptionReader
from testbed.vllm.pages import Pages

PREFIX = "lmcache."
DEFAULTS = {
    "chunk_size": 256,
    "local_cpu": True,
    "max_local_cpu_size": 5.0,
    "save_decode_cache": False,
    "min_retrieve_tokens": 0,
}
# Values that say what LMCache does without them
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "save_unfull_chunk": (False,),
    "cache_policy": ("LRU",),
    "use_layerwise": (False,),
    "enable_async_loading": (False,),
    "enable_blending": (False,),
    "local_disk": (None,),
    "max_local_disk_size": (0,),
    "remote_url": (None,),
}
OF_POLICY = ("chunk_size", "save_decode_cache", "min_retrieve_tokens")  # as LMCache names them
WORDS = {"true": True, "false": False, "null": None, "none": None}


def lmcache_of(
    reader: OptionReader, connector: Connector, pages: Pages, num_gpus: int
) -> LowerCache:
    """The cache of a command. Raises InputError for one that is not modelled."""
    values = _values(reader, connector.values)
    chunk, size = values["chunk_size"], pages.block_size
    if chunk % size:
        raise reader.refusal(TRANSFER, f"chunk_size={chunk}: is not whole blocks of {size} tokens")
    chunk_bytes = pages.page_bytes * (chunk // size)
    aligned = ceil_div(chunk_bytes, ALIGNMENT) * ALIGNMENT
    num_chunks = int(values["max_local_cpu_size"] * GIB) // aligned
    if not num_chunks:
        raise reader.refusal(TRANSFER, f"max_local_cpu_size: holds no chunk of {aligned:,} bytes")
    num_blocks = num_chunks * (chunk // size)
    num_bytes = num_chunks * chunk_bytes * num_gpus
    return LowerCache(num_blocks, num_bytes, "lmcache", {name: values[name] for name in OF_POLICY})


def _values(reader: OptionReader, extra: dict[str, Any]) -> dict[str, Any]:
    """LMCache's values: of the connector, else of the environment, else its own. Raises InputError
    for one that is not modelled.
    """
    given = {
        name.removeprefix(LMCACHE).lower(): _read(text)
        for name, text in reader.environment.items()
        if name.startswith(LMCACHE)
    }
    for name, value in extra.items():
        if not name.startswith(PREFIX):
            raise reader.refusal(TRANSFER, f"{name}: is not modelled", "leave it out")
        given[name.removeprefix(PREFIX)] = value
    for name, value in given.items():
        if name not in DEFAULTS and value not in NEUTRAL.get(name, ()):
            raise reader.refusal(
                TRANSFER, f"LMCache's {name}={value}: is not modelled", "leave it out"
            )
    values = {**DEFAULTS, **{name: given[name] for name in DEFAULTS if name in given}}
    _check(reader, values)
    return values


def _check(reader: OptionReader, values: dict[str, Any]) -> None:
    """Raise InputError for a value of another type, and for a server without this cache."""
    for name, least in (("chunk_size", 1), ("min_retrieve_tokens", 0)):
        if type(values[name]) is not int or values[name] < least:
            raise reader.refusal(TRANSFER, f"{name}={values[name]}: is no number of tokens")
    size = values["max_local_cpu_size"]
    if type(size) not in (int, float) or size <= 0:
        raise reader.refusal(TRANSFER, f"max_local_cpu_size={size}: is no size above 0")
    for name in ("local_cpu", "save_decode_cache"):
        if type(values[name]) is not bool:
            raise reader.refusal(TRANSFER, f"{name}={values[name]}: is not true or false")
    if not values["local_cpu"]:
        raise reader.refusal(TRANSFER, "local_cpu=false: is not modelled", "true")


def _read(text: str) -> Any:
    """A value of the environment."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
