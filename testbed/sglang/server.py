"""The server that a SGLang command starts: its limits, its memory and its pool, or SGLang's own
refusal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from testbed.core.divided_weights import columns_problem
from testbed.core.errors import DoesNotStart
from testbed.core.scale_blocks import cut_block
from testbed.core.specs import GIB, GpuSpec, ModelSpec
from testbed.sglang.command import ON, SERVE, Command
from testbed.sglang.hierarchy import HostPool, host_pool_of
from testbed.sglang.memory import Graphs, Limits, ServerMemory, memory_of, size_of, terms
from testbed.sglang.option_values import decimal, number, refusal, whole
from testbed.sglang.pool import (
    TokenPool,
    cells_of,
    check_modelled,
    check_sparse,
    has_window_pool,
    page_size_of,
    token_pool,
)
from testbed.sglang.start_rules import check_scheduling
from testbed.sglang.window_pools import ByRatio, ByRequests, CellBytes, Division, OnePool

MOST_REQUESTS, LEAST_REQUESTS = 4096, 2048  # resolve_max_num_reqs
MAX_PREFILL_TOKENS = 16384
WINDOW_RATIO = 0.8
LLAMA_2_GRAPH = 4096
KV_BYTES = {"auto": None, "fp8_e4m3": 1, "fp8_e5m2": 1, "bf16": 2, "bfloat16": 2}
DTYPE_BYTES = {"auto": None, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}


@dataclass(frozen=True)
class Server:
    """The server of a command's options, and what follows from them.

    host: the pool behind it, with HiCache. option: our option with the model's shape. notes: what
    was read and changes nothing. cached_bytes: of a cached value, as the option's file says.
    """

    model: ModelSpec
    gpu: GpuSpec
    limits: Limits
    max_running_requests: int
    memory: ServerMemory
    pool: TokenPool
    values: Mapping[str, str]
    host: HostPool | None = None
    option: str = ""
    notes: tuple[str, ...] = ()
    cached_bytes: int | None = None


def server_with(command: Command, shape: ModelSpec, gpu: GpuSpec, kind: str) -> Server:
    """The server of a command with this shape on this GPU, whatever names it gives. kind: the
    model's class. Raises DoesNotStart if SGLang would not start, and InputError for what is not
    modelled.
    """
    values = command.values
    check_modelled(shape, kind)
    model = _served(values, shape)
    check_sparse(model, gpu, values.get("--kv-cache-dtype", "auto"))
    limits = limits_of(values, gpu)
    num_gpus = limits.num_gpus
    uneven = model.heads_problem(num_gpus) or columns_problem(model, num_gpus, num_gpus)
    if problem := uneven or cut_block(model, num_gpus):
        raise DoesNotStart(
            key=f"{SERVE}: --tp-size", value=num_gpus, problem=problem, system="SGLang"
        )
    memory = memory_of(model, gpu, limits, _fraction(values))
    windows = has_window_pool(model, kind)
    cells = cells_of(model, limits.num_gpus, windows=windows)
    page = page_size_of(model, gpu, kind, whole(values, "--page-size"))
    check_scheduling(values, limits.chunked_prefill_size, page)
    _check_memory(memory, gpu)
    ratio = _window_ratio(values)
    division = _window_division(values, model, limits, ratio) if windows else OnePool()
    pool = _pool(values, cells, page, int(memory.kv_cache * GIB), division)
    running = running_requests(limits.max_running_requests, pool.num_tokens, model.max_len)
    host = host_pool_of(values, pool)
    return Server(model, gpu, limits, running, memory, pool, values, host)


def limits_of(values: Mapping[str, str], gpu: GpuSpec) -> Limits:
    """The limits of a batch, by SGLang's rules if the command does not give them."""
    chunk = number(values, "--chunked-prefill-size")
    disabled = values.get("--disable-cuda-graph") == ON
    graphs = Graphs(
        decodes=not disabled and values.get("--disable-decode-cuda-graph") != ON,
        prompts=not disabled and values.get("--disable-prefill-cuda-graph") != ON,
        largest=number(values, "--cuda-graph-max-bs-decode"),
        longest=_longest_graph(values),
    )
    return Limits(
        num_gpus=whole(values, "--tp-size") or 1,
        chunked_prefill_size=size_of(gpu).chunk if chunk is None else chunk,
        max_prefill_tokens=whole(values, "--max-prefill-tokens") or MAX_PREFILL_TOKENS,
        max_running_requests=whole(values, "--max-running-requests"),
        graphs=graphs,
    )


def _longest_graph(values: Mapping[str, str]) -> int | None:
    """The tokens of prompts beyond which a pool, or a Llama 2, has no graphs; None: no limit."""
    limits = [number(values, "--max-total-tokens")]
    if "llama-2" in values.get("--model-path", "").lower():
        limits.append(LLAMA_2_GRAPH)
    return min((limit for limit in limits if limit is not None), default=None)


def running_requests(asked: int | None, total_tokens: int, context_length: int) -> int:
    """SGLang's max_running_requests of a pool (resolve_max_num_reqs)."""
    estimated = int(total_tokens / context_length * 512)
    most = max(min(estimated, MOST_REQUESTS), LEAST_REQUESTS) if asked is None else asked
    return min(most, total_tokens // 2)


def _served(values: Mapping[str, str], shape: ModelSpec) -> ModelSpec:
    """The shape with the types and the longest sequence that the options give it."""
    context = whole(values, "--context-length")
    if context is not None and context > shape.max_len:
        raise DoesNotStart(
            key=f"{SERVE}: --context-length",
            value=context,
            system="SGLang",
            problem=f"longer than the model's {shape.max_len:,} positions",
        )
    model = shape if context is None else replace(shape, max_len=context)
    dtype_bytes = _one_of(values, "--dtype", DTYPE_BYTES)
    kv_bytes = _one_of(values, "--kv-cache-dtype", KV_BYTES)
    if dtype_bytes is not None:
        model = replace(model, dtype_bytes=dtype_bytes)
    return model if kv_bytes is None else replace(model, kv_dtype_bytes=kv_bytes)


def _check_memory(memory: ServerMemory, gpu: GpuSpec) -> None:
    if memory.kv_cache <= 0:
        raise DoesNotStart(
            key=SERVE,
            system="SGLang",
            problem=(
                f"{memory.weights:.2f} GiB of weights leave no memory for "
                f"the KV cache of the {memory.free:.2f} GiB of each {gpu.name} with "
                f"mem_fraction_static={memory.fraction}"
            ),
            remedy="raise --mem-fraction-static or --tp-size",
        )


def _pool(
    values: Mapping[str, str], cells: CellBytes, page: int, num_bytes: int, division: Division
) -> TokenPool:
    """The pool of num_bytes bytes, or the smaller one that the command asks for. Up to the expected
    error of the memory, what it asks for counts, since it may come from the server's log.
    """
    found = token_pool(cells, page, division.of_bytes(cells, num_bytes, page))
    asked = number(values, "--max-total-tokens")
    error = terms().expected_error_gib * GIB / cells.full
    if asked is None or asked > found.num_tokens + error:
        return found
    return token_pool(cells, page, division.of_tokens(asked, page))


def _window_division(
    values: Mapping[str, str], model: ModelSpec, limits: Limits, ratio: float
) -> Division:
    """The rule for a model whose layers with a window have a pool of their own."""
    assert model.window is not None, "asked of a model with windows"
    chunk = limits.chunked_prefill_size
    window, num_requests = model.window.size - 1, limits.max_running_requests
    if values.get("--disable-radix-cache") != ON or num_requests is None or chunk <= 0:
        return ByRatio(ratio, window)
    num_chunks = 1 if values.get("--disable-overlap-schedule") == ON else 2
    return ByRequests(window, num_requests, num_chunks * chunk)


def _window_ratio(values: Mapping[str, str]) -> float:
    ratio = decimal(values, "--swa-full-tokens-ratio")
    if ratio is None:
        return WINDOW_RATIO
    if not 0 < ratio <= 1:
        raise refusal(values, "--swa-full-tokens-ratio", "must be above 0 and at most 1")
    return ratio


def _fraction(values: Mapping[str, str]) -> float | None:
    fraction = decimal(values, "--mem-fraction-static")
    if fraction is not None and not 0 < fraction < 1:
        raise refusal(values, "--mem-fraction-static", "must be above 0 and below 1")
    return fraction


def _one_of(values: Mapping[str, str], name: str, choices: Mapping[str, int | None]) -> int | None:
    value = values.get(name, "auto")
    if value not in choices:
        raise refusal(values, name, "is not modelled", f"choose from {', '.join(choices)}")
    return choices[value]
