"""What the options of SGLang's server are here: overrides, nothing, or not modelled."""

from collections.abc import Mapping

from testbed.core.errors import InputError
from testbed.sglang.command import FLAG, ON, Command

# Options whose value an override takes
OVERRIDES: Mapping[str, str] = {
    "--tp-size": "server.num_gpus",
    "--page-size": "policy.block_size",
    "--max-prefill-tokens": "scheduler.max_prefill_tokens",
    "--prefill-max-requests": "scheduler.prefill_max_requests",
    "--schedule-policy": "scheduler.schedule_policy",
    "--schedule-conservativeness": "scheduler.schedule_conservativeness",
    "--retraction-policy": "scheduler.retraction_policy",
    "--context-length": "model.max_len",
}
FLAGS: Mapping[str, str] = {
    "--enable-mixed-chunk": "scheduler.enable_mixed_chunk=true",
    "--enable-priority-scheduling": "scheduler.enable_priority_scheduling=true",
    "--schedule-low-priority-values-first": ("scheduler.schedule_low_priority_values_first=true"),
}
READ = (
    "--model-path",
    "--max-total-tokens",
    "--chunked-prefill-size",
    "--max-running-requests",
    "--disable-overlap-schedule",
    "--disable-radix-cache",
)
# Options that change neither a decision nor a time
HARMLESS = frozenset(
    (
        "--host",
        "--port",
        "--api-key",
        "--admin-api-key",
        "--log-level",
        "--log-level-http",
        "--served-model-name",
        "--tokenizer-path",
        "--tokenizer-mode",
        "--trust-remote-code",
        "--enable-metrics",
        "--log-requests",
        "--log-requests-level",
        "--show-time-cost",
        "--watchdog-timeout",
        "--download-dir",
        "--random-seed",
        "--chat-template",
        "--tool-call-parser",
        "--reasoning-parser",
        "--decode-log-interval",
        "--enable-cache-report",
        "--crash-dump-folder",
        "--load-format",
        "--skip-server-warmup",
    )
)
MOST_REQUESTS, LEAST_REQUESTS = 4096, 2048  # resolve_max_num_reqs
GIB_CHUNKS = ((20, 2048), (60, 4096), (160, 8192))  # handle_gpu_memory_settings: below so many GiB
LARGEST_CHUNK = 16384


def chunk_by_gpu(memory_gib: float) -> int:
    """SGLang's chunked-prefill-size for a GPU of this memory."""
    return next((chunk for most, chunk in GIB_CHUNKS if memory_gib < most), LARGEST_CHUNK)


def running_requests(asked: int | None, total_tokens: int, context_length: int) -> int:
    """SGLang's max_running_requests of a pool (resolve_max_num_reqs)."""
    estimated = int(total_tokens / context_length * 512)
    most = max(min(estimated, MOST_REQUESTS), LEAST_REQUESTS) if asked is None else asked
    return min(most, total_tokens // 2)


def notes_of(command: Command) -> list[str]:
    """The options that change nothing here. Raises InputError for one that is not modelled."""
    known = {*OVERRIDES, *FLAGS, *READ, *HARMLESS}
    unknown = next((name for name in command.values if name not in known), None)
    if unknown is not None:
        raise InputError(f"{FLAG}: {unknown}: is not modelled (leave it out)")
    return [name for name in command.values if name in HARMLESS]


def number(command: Command, name: str) -> int | None:
    """The whole number of an option; None where it is not given."""
    text = command.values.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{FLAG}: {name} {text}: is no whole number (give one)") from None


def words_of(command: Command, memory_gib: float, max_len: int) -> list[str]:
    """The overrides of a server on GPUs of so much memory, for a model of max_len tokens.

    The pool is --max-total-tokens: what SGLang computes from --mem-fraction-static depends on what
    is free on a GPU after its CUDA graphs are captured. Its log prints max_total_num_tokens.
    """
    values = command.values
    total = number(command, "--max-total-tokens")
    if total is None:
        raise InputError(
            f"{FLAG}: the pool depends on the memory that is free after CUDA graphs are captured "
            "(add --max-total-tokens N, which the log of your server prints as "
            "max_total_num_tokens=N)"
        )
    if total < 1:
        raise InputError(f"{FLAG}: --max-total-tokens {total}: must be above 0")
    page, context = number(command, "--page-size") or 1, number(command, "--context-length")
    chunk = number(command, "--chunked-prefill-size")
    chunk = chunk_by_gpu(memory_gib) if chunk is None else chunk
    limit = running_requests(
        number(command, "--max-running-requests"), total // page * page, context or max_len
    )
    has_tree = values.get("--disable-radix-cache") != ON
    overlaps = values.get("--disable-overlap-schedule") != ON
    return [
        f"scheduler={'sglang' if overlaps else 'sglang_no_overlap'}",
        f"policy={'radix' if has_tree else 'paged'}",
        *(() if has_tree else (f"policy.block_size={page}", "policy.watermark=0")),
        "preemption=recompute",
        "~server.kv_memory_gib",
        f"server.num_blocks={total // page}",
        f"scheduler.chunked_prefill_size={chunk if chunk > 0 else 'null'}",
        f"scheduler.max_running_requests={limit}",
        *(f"{key}={values[name]}" for name, key in OVERRIDES.items() if name in values),
        *(word for name, word in FLAGS.items() if name in values),
    ]
