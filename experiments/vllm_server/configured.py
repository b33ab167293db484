"""The pool and the limits of `+system=vllm-v1`, as vLLM takes them for a model on a GPU.

Values of the preset are `${vllm_server:NAME}`: what nothing else sets follows from the rest of
the configuration, by the rules that read a command's options.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf

from testbed.core.config_model import read
from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.slots import ceil_div
from testbed.core.specs import GIB, GpuSpec, ModelSpec
from testbed.run.config import ServerConfig, defaults_of
from testbed.run.parts import Part, locate
from testbed.speculation.drafter_memory import drafter_memory
from testbed.speculation.speculation import Speculation
from testbed.vllm.command import OFF, ON, Command
from testbed.vllm.option_table import options_of
from testbed.vllm.pages import Pages, pages_of
from testbed.vllm.releases import Release, release_numbered
from testbed.vllm.server import (
    Checkpoint,
    Server,
    block_size_with,
    limits_with,
    server_with,
    with_drafter,
)

LIMITS = {
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
}

KEYS = {
    **{option: f"scheduler.{key}" for option, key in LIMITS.items()},
    "--gpu-memory-utilization": "server.memory_utilization",
    "--tensor-parallel-size": "server.num_gpus",
    "--max-model-len": "model.max_len",
}


def value_of(name: str, root: DictConfig) -> Any:
    """The value of `${vllm_server:NAME}` in a configuration, which is read once for all of them:
    its cache keeps the server until `composed` sets a value or `typed_config` clears it.
    """
    known = OmegaConf.get_cache(root)["vllm_server"]
    if not known:
        known["configured"] = Configured(root, release_numbered(root.release))
    return VALUES[name](known["configured"])


def without_read_utilization(config: DictConfig, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a configuration whose `server.num_blocks` this module computes, without the
    utilization that it has read if it gave the pool: nothing reads it again.
    """
    pools = _pools(config.server)
    if values["server"]["num_blocks"] is not None or any(
        OmegaConf.is_interpolation(pools, str(name)) for name in pools
    ):
        values["server"]["memory_utilization"] = defaults_of(ServerConfig)["memory_utilization"]
    return values


class Configured:
    """A composed configuration, read as a server of vLLM's."""

    def __init__(self, config: DictConfig, release: Release) -> None:
        self.config, self.release = config, release
        if config.model.get("chunks") is not None:
            raise InputError(
                key="model",
                value=str(config.model.name),
                problem="has layers of chunked attention, whose cache in vLLM is not simulated",
                remedy="leave out +system, or choose another model",
            )
        self.num_gpus = _count("server.num_gpus", config.server.num_gpus)

    @cached_property
    def model(self) -> ModelSpec:
        return read(ModelSpec, _plain(self.config.model), "model")

    @cached_property
    def gpu(self) -> GpuSpec:
        return read(GpuSpec, _plain(self.config.server.gpu), "server.gpu")

    @cached_property
    def command(self) -> Command:
        """The options that the configuration's values stand for."""
        values = {
            "--tensor-parallel-size": str(self.num_gpus),
            "--gpu-memory-utilization": str(_share(self.config.server.memory_utilization)),
        }
        for option, key in LIMITS.items():
            if not OmegaConf.is_interpolation(self.config.scheduler, key):
                limit = self.config.scheduler[key]
                values[option] = str(_count(f"scheduler.{key}", limit))
        if self.config.scheduler.get("enable_chunked_prefill") is False:
            values["--enable-chunked-prefill"] = "false"
        policy = locate(str(self.config.policy["_target_"]), "policy")
        values["--enable-prefix-caching"] = ON if hasattr(policy, "publish") else OFF
        return Command(None, values, options_of(values), keys=KEYS)

    @cached_property
    def server(self) -> Server:
        """Raises InputError if vLLM would not start."""
        name = str(self.config.model.name)
        positions = read_model(name).max_len if name in model_names() else None
        checkpoint = Checkpoint(self.model, num_positions=positions)
        return server_with(
            self.command, checkpoint, self.gpu, self.release, speculation=self.speculation
        )

    @property
    def speculation(self) -> Speculation | None:
        """The drafter, if there is one; only its memory is asked for."""
        values = self.config.get("speculation")
        if values is None:
            return None
        part = Part.from_values(OmegaConf.to_container(values, resolve=True), "speculation")
        speculation = part.make("speculation")
        return speculation if isinstance(speculation, Speculation) else None

    @property
    def is_sized_by_vllm(self) -> bool:
        """True if nothing else says how large the pool is."""
        server = self.config.server
        pools, name = _pools(server), self.model.name
        has_pool = name in pools and not OmegaConf.is_interpolation(pools, name)
        is_usual = server.workspace_gib == defaults_of(ServerConfig)["workspace_gib"]
        return OmegaConf.is_interpolation(server, "num_blocks") and is_usual and not has_pool


def _pools(server: DictConfig) -> DictConfig:
    """GiB for the KV cache by model."""
    pools = server.get("kv_memory_gib") or OmegaConf.create()
    if not isinstance(pools, DictConfig):
        raise InputError(
            key="server.kv_memory_gib",
            value=repr(pools),
            problem="must be a table of values by name",
            remedy="give 'server.kv_memory_gib={NAME: GIB}'",
        )
    return pools


def _count(key: str, value: object) -> int:
    """The value of a key that counts; raises InputError for any other, which no option takes."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(key=key, value=repr(value), problem="must be a whole number of at least 1")
    return value


def _share(value: object) -> float:
    """The memory utilization; raises InputError for what is no share."""
    if not isinstance(value, int | float) or not 0 < value <= 1:
        raise InputError(
            key="server.memory_utilization",
            value=repr(value),
            problem="must be above 0 and at most 1",
        )
    return value


def _limit(name: str) -> Callable[[Configured], int]:
    def limit(configured: Configured) -> int:
        limits = limits_with(
            configured.command, configured.model, configured.gpu, configured.release
        )
        return int(getattr(limits, name))

    return limit


def _utilization(configured: Configured) -> float:
    if configured.is_sized_by_vllm:
        return configured.release.utilization
    return float(defaults_of(ServerConfig)["memory_utilization"])


def _block_size(configured: Configured) -> int:
    return block_size_with(configured.command, configured.model, configured.gpu, configured.release)


def _num_blocks(configured: Configured) -> int | None:
    """The blocks of one size for all layers; None if another rule sizes the pool."""
    block_size = configured.config.policy.get("block_size")
    is_grouped = configured.model.name in _pools(configured.config.server)
    if (
        is_grouped
        or not configured.is_sized_by_vllm
        or not isinstance(block_size, int)
        or block_size < 1
    ):
        return None
    pages = pages_of(configured.model, configured.num_gpus, block_size, is_hybrid=False)
    drafter = drafter_memory(configured.speculation, configured.model, configured.num_gpus)
    pages = with_drafter(pages, drafter, configured.num_gpus)
    return _pool_bytes(configured.server) // pages.page_bytes


def _pool_gib(configured: Configured) -> float:
    """GiB over all GPUs of vLLM's pages, without the null page."""
    return pool_gib(configured.server)


def pool_gib(server: Server) -> float:
    """GiB over all GPUs that have the server's pages, without the null page.

    A pool in GiB is cut to whole tokens of all layers, so that they are rounded up: a page is
    larger than a token.
    """
    model, num_gpus = server.model, server.limits.num_gpus
    num_pages = server.pool.num_blocks - 1
    token_bytes = model.kv_bytes_per_token * model.kv_copies(num_gpus)
    num_tokens = ceil_div(num_pages * server.pages.page_bytes * num_gpus, token_bytes)
    return (num_tokens * token_bytes + 1) / GIB


def _pool_bytes(server: Server) -> int:
    pages: Pages = server.pages
    return server.pool.num_blocks * pages.page_bytes


def _plain(config: DictConfig) -> dict[str, Any]:
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "_target_"}


VALUES: dict[str, Callable[[Configured], Any]] = {
    "max_num_seqs": _limit("max_num_seqs"),
    "max_num_batched_tokens": _limit("max_num_batched_tokens"),
    "memory_utilization": _utilization,
    "block_size": _block_size,
    "num_blocks": _num_blocks,
    "pool_gib": _pool_gib,
}
