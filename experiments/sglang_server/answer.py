"""The answer of `testbed fits` for SGLang: the memory of a server, and the lines of its log."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from testbed.core.specs import GIB
from testbed.experiments.sglang_server.named_server import divided, server_of, started
from testbed.experiments.vllm_server.named_server import smallest_degree
from testbed.experiments.vllm_server.stand_in import check_stand_in
from testbed.sglang.command import Command, read_command
from testbed.sglang.memory import terms
from testbed.sglang.pool import cache_type
from testbed.sglang.server import Server

RELEASE = "0.5.23"


@dataclass(frozen=True)
class SglangFit:
    """The answer of `testbed fits --json` for a command of SGLang's; GiB on each GPU.

    free_gib: before the weights. reserved_gib: kept free by mem_fraction_static. window_tokens:
    null if no layers have a pool of their own. host_tokens: of HiCache's pool in host memory; 0
    without one. smallest_tp_size: that starts. expected_error_gib: of the pool, if the command does
    not give it.
    """

    release: str
    model: str
    gpu: str
    num_gpus: int
    free_gib: float
    weights_gib: float
    reserved_gib: float
    mem_fraction_static: float
    kv_cache_gib: float
    page_size: int
    max_total_num_tokens: int
    window_tokens: int | None
    host_tokens: int
    chunked_prefill_size: int
    max_running_requests: int
    context_len: int
    smallest_tp_size: int | None
    expected_error_gib: float
    log_lines: tuple[str, ...]
    notes: tuple[str, ...]


def fit_of(
    text: str, gpu: str, model: str | None = None, folders: Sequence[Path] = ()
) -> SglangFit:
    """The answer for a command; raises InputError if SGLang would not start.

    model: whose shape the command's model has; None: its own. folders: of own models and GPUs.
    """
    command = _with_stand_in(read_command(text), model, folders)
    server = started(command, gpu, folders, for_memory=True)
    start = partial(server_of, gpu=gpu, folders=folders, for_memory=True)
    memory, pool = server.memory, server.pool
    return SglangFit(
        release=RELEASE,
        model=server.model.name,
        gpu=server.gpu.name,
        num_gpus=server.limits.num_gpus,
        free_gib=memory.free,
        weights_gib=memory.weights,
        reserved_gib=memory.free * (1 - memory.fraction),
        mem_fraction_static=memory.fraction,
        kv_cache_gib=pool.gib,
        page_size=pool.page_size,
        max_total_num_tokens=pool.num_tokens,
        window_tokens=pool.window_tokens,
        host_tokens=0 if server.host is None else server.host.num_tokens,
        chunked_prefill_size=server.limits.chunked_prefill_size,
        max_running_requests=server.max_running_requests,
        context_len=server.model.max_len,
        smallest_tp_size=smallest_degree(lambda degree: start(divided(command, degree))),
        expected_error_gib=terms().expected_error_gib,
        log_lines=tuple(logged_lines(server)),
        notes=server.notes,
    )


def _with_stand_in(command: Command, model: str | None, folders: Sequence[Path]) -> Command:
    if model is None:
        return command
    check_stand_in(command.values.get("--model-path"), command.values, model, folders)
    return replace(command, values={**command.values, "--model-path": model})


def logged_lines(server: Server) -> list[str]:
    """The lines that SGLang logs about its pool, but for what it measures at the end."""
    pool, limits = server.pool, server.limits
    lines = [_pool_line(server)]
    if pool.window_tokens is not None:
        lines = [
            "Use sliding window memory pool. "
            f"full_layer_tokens={pool.num_tokens}, swa_layer_tokens={pool.window_tokens}",
            f"SWAKVPool mem usage: {pool.gib:.2f} GB, swa size: {pool.window_tokens}, "
            f"full size: {pool.num_tokens}",
        ]
    lines.append(
        f"max_total_num_tokens={pool.num_tokens}, "
        f"chunked_prefill_size={limits.chunked_prefill_size}, "
        f"max_prefill_tokens={limits.max_prefill_tokens}, "
        f"max_running_requests={server.max_running_requests}, context_len={server.model.max_len}"
    )
    return lines


def _pool_line(server: Server) -> str:
    """SGLang allocates one page more, for padding."""
    model, pool = server.model, server.pool
    dtype = cache_type(model, server.values)
    size = (pool.num_tokens + pool.page_size) * pool.cells.full / GIB
    sizes = f"KV size: {size:.2f} GB"
    if model.latent is None:
        sizes = f"K size: {size / 2:.2f} GB, V size: {size / 2:.2f} GB"
    return f"KV Cache is allocated. dtype: torch.{dtype}, #tokens: {pool.num_tokens}, {sizes}"


def lines_of(fit: SglangFit) -> list[str]:
    """The answer for the terminal."""
    pages = f"{fit.max_total_num_tokens:,} tokens in pages of {fit.page_size}"
    rows = (
        ("free before the weights", fit.free_gib),
        ("weights", fit.weights_gib),
        (f"kept free (mem_fraction_static={fit.mem_fraction_static})", fit.reserved_gib),
        (f"KV cache ({pages})", fit.kv_cache_gib),
    )
    width = max(len(name) for name, _ in rows) + 2
    return [
        f"{fit.model} on {fit.num_gpus} x {fit.gpu}, SGLang {fit.release}; GiB on each GPU",
        *(f"  {name:<{width}}{value:8.2f}" for name, value in rows),
        f"  expected error: {fit.expected_error_gib:.2f} GiB of what is free behind the weights, "
        "which SGLang measures;",
        "    the rest is its own arithmetic (testbed lockstep sglang --capacity)",
        *fit.log_lines,
        *([f"host pool behind it: {fit.host_tokens:,} tokens"] if fit.host_tokens else []),
        f"smallest --tp-size that starts: {fit.smallest_tp_size}",
        *(f"harmless, ignored: {note}" for note in fit.notes),
    ]
