"""LMCache's connector of an installed LMCache, of which the copies alone are made up.

Real are the connector's two sides (LMCacheConnectorV1Impl), its engine, token database, storage
manager, local CPU backend and allocator; the two sides share one engine, in one process.
"""

import logging
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from testbed.experiments.real.lockstep.installed_packages import importing, version_of

HOW = "pip install --no-deps lmcache==0.5.6, beside vllm 0.33 and LMCache's own requirements"
ALIGNMENT = 4096  # bytes of its allocator


def installed_lmcache() -> str:
    """The version of the installed LMCache. Raises InputError if there is none."""
    return version_of("lmcache", HOW)


class Copies:
    """Copies nothing (GPUConnectorInterface)."""

    def batched_from_gpu(self, *arguments: Any, **options: Any) -> None:
        """A store."""

    def batched_to_gpu(self, *arguments: Any, **options: Any) -> None:
        """A load."""


class Lookups:
    """Asks the engine, as LMCacheLookupServer does, and keeps the answer until the request is
    scheduled, as LMCacheLookupClient does.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._answers: dict[str, int] = {}

    def lookup_cache(self, lookup_id: str) -> int:
        """The answer that is kept; -1: none is."""
        return self._answers.get(lookup_id, -1)

    def lookup(self, token_ids: Any, lookup_id: str, request_configs: Any = None) -> int:
        """Tokens that are found, which are pinned."""
        found = self._engine.lookup(tokens=token_ids, lookup_id=lookup_id, pin=True)
        self._answers[lookup_id] = found
        return int(found)

    def clear_lookup_status(self, lookup_id: str) -> None:
        """Forget the answer."""
        self._answers.pop(lookup_id, None)


def make_engine(num_chunks: int, chunk_size: int, **options: Any) -> Any:
    """An engine whose local CPU cache has room for num_chunks chunks. options: of LMCache."""
    os.environ["LMCACHE_TRACK_USAGE"] = "false"
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
    logging.getLogger("lmcache").setLevel(logging.CRITICAL)
    with importing("lmcache", HOW):
        import torch
        from lmcache.v1.cache_engine import LMCacheEngine
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.token_database import ChunkedTokenDatabase
    shape = (1, 2, chunk_size, 1, ALIGNMENT // 2 // 2)  # 4,096 bytes a token
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=chunk_size,
        local_cpu=True,
        max_local_cpu_size=num_chunks * chunk_size * ALIGNMENT / 2**30,
        **options,
    )
    metadata = LMCacheMetadata(
        model_name="lockstep",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.float16,
        kv_shape=shape,
        role="worker",
        chunk_size=chunk_size,
    )
    database = ChunkedTokenDatabase(config, metadata)
    nothing: Callable[..., None] = lambda *arguments: None  # noqa: E731
    engine = LMCacheEngine(config, metadata, database, Copies(), nothing, nothing)
    engine.post_init()
    return engine


def make_connector(engine: Any, block_size: int) -> Any:
    """The connector, both sides of it, over this engine."""
    from lmcache.integration.vllm import vllm_v1_adapter as adapter
    from lmcache.integration.vllm.lmcache_connector_v1 import LMCacheConnectorV1Dynamic
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    adapter.get_pp_group = lambda: SimpleNamespace(is_last_rank=True)
    connector = LMCacheConnectorV1Dynamic.__new__(LMCacheConnectorV1Dynamic)
    impl = adapter.LMCacheConnectorV1Impl.__new__(adapter.LMCacheConnectorV1Impl)
    vars(connector).update(
        _connector_metadata=None, _role=KVConnectorRole.SCHEDULER, _lmcache_engine=impl
    )
    vars(impl).update(_state(engine, block_size), _parent=connector)
    return connector


def _state(engine: Any, block_size: int) -> dict[str, Any]:
    """State that __init__ sets of a connector that has seen no request."""
    manager = SimpleNamespace(
        lmcache_engine=engine, lookup_client=Lookups(engine), lookup_server=None
    )
    return dict(
        _manager=manager,
        config=engine.config,
        kv_role="kv_both",
        device="cpu",
        async_loading=False,
        use_layerwise=False,
        enable_blending=False,
        force_skip_save=False,
        skip_last_n_tokens=0,
        current_layer=0,
        _max_tokens_per_load=0,
        _discard_partial_chunks=True,
        _lmcache_chunk_size=engine.config.chunk_size,
        _block_size=block_size,
        _stats_monitor=engine.stats_monitor,
        kv_caches={"a layer": None},
        load_specs={},
        _request_trackers={},
        _unfinished_requests={},
        _requests_priority={},
        _layerwise_save_storers={},
        layerwise_retrievers=[],
        _invalid_block_ids=set(),
    )
