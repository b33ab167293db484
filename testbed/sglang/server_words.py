"""The overrides of the server that a SGLang command starts."""

from collections.abc import Mapping

from testbed.core.errors import InputError
from testbed.core.specs import GIB
from testbed.sglang.command import ON, SERVE
from testbed.sglang.hierarchy import HostPool
from testbed.sglang.server import Server
from testbed.sglang.start_rules import EVICTION, eviction_config

# Options whose value an override takes
OVERRIDES: Mapping[str, str] = {
    "--max-prefill-tokens": "scheduler.max_prefill_tokens",
    "--prefill-max-requests": "scheduler.prefill_max_requests",
    "--schedule-policy": "scheduler.schedule_policy",
    "--schedule-conservativeness": "scheduler.schedule_conservativeness",
    "--retraction-policy": "scheduler.retraction_policy",
}
NO_OVERLAP = "sglang_no_overlap"
FLAGS: Mapping[str, str] = {
    "--enable-mixed-chunk": "scheduler.enable_mixed_chunk=true",
    "--enable-priority-scheduling": "scheduler.enable_priority_scheduling=true",
    "--schedule-low-priority-values-first": "scheduler.schedule_low_priority_values_first=true",
}


def overrides_of(server: Server) -> list[str]:
    """The overrides, each a word of the command line. Raises InputError for what is not
    simulated.
    """
    _check_simulated(server)
    values = server.values
    return [
        f"model={server.option}",
        *_memory_words(server),
        f"scheduler={'sglang' if values.get('--disable-overlap-schedule') != ON else NO_OVERLAP}",
        "preemption=recompute",
        f"server.num_gpus={server.limits.num_gpus}",
        f"scheduler.chunked_prefill_size={max(server.limits.chunked_prefill_size, 0) or 'null'}",
        f"scheduler.max_running_requests={server.max_running_requests}",
        *(f"{key}={values[name]}" for name, key in OVERRIDES.items() if name in values),
        *(word for name, word in FLAGS.items() if name in values),
    ]


def _memory_words(server: Server) -> list[str]:
    """The pool, in pages, and the policy that stores in it."""
    pool = server.pool
    words = [
        "~server.kv_memory_gib",
        f"server.num_blocks={pool.num_tokens // pool.page_size}",
        f"policy.block_size={pool.page_size}",
    ]
    if server.values.get("--disable-radix-cache") == ON:
        return ["policy=paged", "policy.watermark=0", *words]
    words += _eviction_words(server.values)
    if server.host is not None:
        return ["policy=hicache", *words, *_host_words(server, server.host)]
    return ["policy=radix", *words]


def _eviction_words(values: Mapping[str, str]) -> list[str]:
    """The order in which runs are evicted, and its parameters."""
    key = "policy.radix_eviction_policy"
    words = [f"{key}={values[EVICTION]}"] if EVICTION in values else []
    pairs = ",".join(f"{name}:{value}" for name, value in eviction_config(values).items())
    return [*words, f"{key}_config={{{pairs}}}"] if pairs else words


def _host_words(server: Server, host: HostPool) -> list[str]:
    """The host pool, of as many tokens as it has."""
    size_gib = (host.num_tokens * server.model.kv_bytes_per_token + 1) / GIB
    return [
        f"policy.hicache_write_policy={host.write_policy}",
        "+tier@server.tiers.dram=dram",
        f"server.tiers.dram.size_gib={size_gib!r}",
    ]


def _check_simulated(server: Server) -> None:
    values = server.values
    if server.pool.window_tokens is not None:
        raise InputError(
            key=f"{SERVE}: --model-path",
            problem="has a pool for layers with a window, which is not simulated",
            remedy="testbed fits says what the server holds",
        )
    preempts = values.get("--disable-priority-preemption") != ON
    if values.get("--enable-priority-scheduling") == ON and preempts:
        raise InputError(
            key=f"{SERVE}: --enable-priority-scheduling",
            problem="preempts requests of lower priority, which is not modelled",
            remedy="add --disable-priority-preemption",
        )
