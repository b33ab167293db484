"""The memory of this project's engine on each GPU, from the words of its run: `testbed fits
"testbed run engine=gpu ..." gpu=NAME`. Nothing is simulated.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from testbed.core.errors import InputError
from testbed.core.specs import GIB, ModelSpec
from testbed.experiments.runs.compose import configured
from testbed.kernels.engine.draft_checks import check_speculation
from testbed.kernels.engine.held_memory import held_memory
from testbed.memory.policy import PoolSpec
from testbed.run.build import build
from testbed.run.config import RunConfig
from testbed.run.machine import block_size_of, make_pool

COMMAND = ["testbed", "run"]
NAMES = {
    "weights": "weights",
    "prompt_graphs": "graphs of prompts",
    "decode_graphs": "graphs of decodes",
    "logits": "logits of decodes",
    "attention": "workspace of attention",
    "eager": "kernel by kernel",
    "cublas": "workspaces of cuBLAS",
    "cuda": "CUDA, kernels",
    "nccl": "NCCL, as between 2 GPUs",
    "captured": "graphs in CUDA",
    "drafter": "drafter: weights, graphs, workspace",
}


@dataclass(frozen=True)
class EngineFit:
    """The answer of `testbed fits --json` for this engine; GiB on each GPU. held_gib: its parts by
    name, with those of CUDA and NCCL. host_gib: pinned in the host's memory for each GPU, by the
    tiers below it. num_slots: tokens of the KV cache.
    """

    model: str
    gpu: str
    num_gpus: int
    gpu_gib: float
    held_gib: dict[str, float]
    total_gib: float
    host_gib: float
    num_slots: int


def engine_fit(command: str, gpu: str) -> EngineFit:
    """The answer for `testbed run engine=gpu ...` on a GPU. Raises InputError for words that such a
    run does not take.
    """
    try:
        words = shlex.split(command)[len(COMMAND) :]
    except ValueError as error:
        raise InputError(key=command, problem=f"cannot be read: {error}") from None
    config = configured([*words, f"gpu={gpu}"])
    if config.engine is None or config.engine.device == "cpu":
        raise InputError(key=command, problem="counts an engine on GPUs", remedy="engine=gpu")
    pool, drafter = _pool_and_drafter(config)
    server, block_size = config.server, block_size_of(config.policy) or 1
    held = held_memory(config.model, pool, block_size, config.engine, drafter)
    return EngineFit(
        model=config.model.name,
        gpu=server.gpu.name,
        num_gpus=server.num_gpus,
        gpu_gib=server.gpu.memory_bytes / GIB,
        held_gib={name: size / GIB for name, size in held._asdict().items()},
        total_gib=sum(held) / GIB,
        host_gib=_host_bytes(pool, block_size) / pool.num_gpus / GIB,
        num_slots=pool.num_slots,
    )


def _pool_and_drafter(config: RunConfig) -> tuple[PoolSpec, ModelSpec | None]:
    """The pool, whose slots have the K and V of a model that drafts too; and that model."""
    if config.speculation is None:
        return make_pool(config), None
    setup = build(config)
    check_speculation(setup)
    speculation = setup.scheduler.drafter
    return setup.pool, None if speculation is None else speculation.drafter(config.model)


def _host_bytes(pool: PoolSpec, block_size: int) -> int:
    """The bytes of the pools of all tiers, in whole blocks."""
    slots = sum(tier.num_slots // block_size * block_size for tier in pool.tiers)
    return slots * pool.layer_bytes * pool.num_layers


def lines_of(fit: EngineFit) -> Iterator[str]:
    """The answer for the terminal."""
    names = NAMES | {"kv_cache": f"KV cache ({fit.num_slots:,} tokens)"}
    held = fit.held_gib.items()
    rows = [(names[name], size) for name, size in held if size]
    rows += [("together", fit.total_gib)]
    width = max(len(name) for name, _ in rows) + 2
    yield f"{fit.model} on {fit.num_gpus} x {fit.gpu}, this project's engine; GiB on each GPU"
    yield from (f"  {name:<{width}}{size:8.2f}" for name, size in rows)
    if fit.host_gib:
        yield f"pinned in the host's memory for each GPU: {fit.host_gib:.2f}"
    if fit.total_gib > fit.gpu_gib:
        yield f"does not fit: the GPU has {fit.gpu_gib:.2f} (fewer server.num_blocks, or more GPUs)"
