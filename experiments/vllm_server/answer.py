"""The answer of `testbed fits`: the memory of a server, and vLLM's own two lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.core.errors import DoesNotStart
from testbed.core.specs import GIB
from testbed.experiments.vllm_server.expected_error import (
    error_lines,
    margin_of,
    unlogged_parts,
    with_margin,
)
from testbed.experiments.vllm_server.hosts import host_lines
from testbed.experiments.vllm_server.named_server import (
    PARALLELISM,
    server_of,
    smallest_degree,
    started,
)
from testbed.experiments.vllm_server.stand_in import with_stand_in
from testbed.vllm.attention_backends import BLOCK_SIZE
from testbed.vllm.command import OFF, ON, Command, read_command
from testbed.vllm.memory import Terms, seen_gib, terms
from testbed.vllm.pages import logged_lines, logged_tokens
from testbed.vllm.releases import DEFAULT, Release
from testbed.vllm.server import REPLICAS, Server
from testbed.vllm.start_refusals import (
    CACHE_TYPE,
    CONTEXT_GIB,
    GRAPHS_GIB,
    LARGE_SHARE,
    graphs_may_not_fit,
)

BUDGET, CHUNKS = "--max-num-batched-tokens", "--enable-chunked-prefill"
UNSEEN = "what torch sees of this GPU's memory is not known: usually 1 to 2% less"
MOVES_TOKENS = "--enable-lora", "--speculative-config", CACHE_TYPE
ADAPTERS = "the time that adapters take is not modelled, only their memory"
WATERMARK = "policy.watermark"
NO_WATERMARK = f"{WATERMARK}=0"
WITH_WATERMARK = (  # by default, the paper's; beside a command they keep none, as vLLM V1
    "paged",
    "prefix_caching",
    "tiered",
    "tiered_exclusive",
    "grouped",
    "grouped_caching",
)
EQUAL_SHARES = 0.02  # by which tokens over a request's length and the concurrency may differ


@dataclass(frozen=True)
class Fit:
    """The answer of `testbed fits --json`; GiB on each GPU.

    weights_gib, adapters_gib, activation_gib, non_torch_gib and cuda_graphs_gib are null if the
    command gives the pool; activation_rmse_gib is the residual of their fit. drafter_gib and
    encoder_gib, of images, are parts of weights_gib. offloaded_tokens: of the CPU cache that the
    command asks for. assumptions: what is taken for a drafter whose shape is not at hand. unlogged:
    parts of the memory to which the error says nothing, for no logged start-up has them.
    kv_tokens_without: kv_tokens of the same command without an option that changes them, by option,
    0 if it does not start so.
    gpu_memory_gib: of one GPU, of which vLLM may use gpu_memory_utilization; seen_by_torch: false
    if only its data sheet or driver says it. num_replicas: engines of data parallelism, to each of
    which all numbers apply. num_gpus: of an engine, in all num_stages pipeline stages; the memory
    is that of the stage with the smallest pool, the layers stage_layers. spare_gib: of the pool,
    beyond one request of max_model_len; may_not_start: it is less than memory_error_gib, by which
    the pool of the nearest logged start-up was smaller than computed here (the error of the 13
    shapes, if that is larger); kv_tokens_fewer and longest_model_len_with_error (0: none starts)
    are of a pool that is smaller by it.
    """

    release: str
    model: str
    gpu: str
    num_gpus: int
    num_stages: int
    stage_layers: str | None
    num_replicas: int
    gpu_memory_gib: float
    gpu_memory_utilization: float
    seen_by_torch: bool
    weights_gib: float | None
    drafter_gib: float | None
    encoder_gib: float | None
    adapters_gib: float | None
    activation_gib: float | None
    non_torch_gib: float | None
    cuda_graphs_gib: float | None
    kv_cache_gib: float
    num_blocks: int
    block_size: int
    kv_tokens: int
    offloaded_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_concurrency: float
    longest_model_len: int
    smallest_tensor_parallel: int | None
    spare_gib: float | None
    memory_error_gib: float | None
    may_not_start: bool
    kv_tokens_fewer: int | None
    longest_model_len_with_error: int | None
    activation_rmse_gib: float
    captures_graphs: bool
    notes: tuple[str, ...]
    assumptions: tuple[str, ...]
    unlogged: tuple[str, ...]
    kv_tokens_without: dict[str, int]


@dataclass(frozen=True)
class Question:
    """A command on a GPU, of a release, by terms of the memory. folders: of a user's options."""

    command: Command
    gpu: str | None
    release: Release = DEFAULT
    of: Terms | None = None
    folders: Sequence[Path] = ()

    @property
    def server(self) -> Server:
        """Raises InputError if vLLM would not start."""
        return server_of(
            self.command,
            self.gpu,
            self.folders,
            release=self.release,
            of=self.of,
            for_memory=True,
        )

    def updated(self, option: str, value: str) -> "Question":
        """This question with another value of one option."""
        return replace(self, command=self.command.updated(option, value))

    def without(self, option: str) -> "Question":
        """This question without one option."""
        return replace(self, command=self.command.without(option))


def fit_of(
    text: str,
    gpu: str | None,
    release: Release = DEFAULT,
    of: Terms | None = None,
    *,
    model: str | None = None,
    folders: Sequence[Path] = (),
) -> Fit:
    """The answer for a command; raises InputError if vLLM would not start.

    model: whose shape the command's has; None: the command's own. folders: of a user's options.
    """
    command = read_command(text)
    asked = with_stand_in(command, model, folders)
    question = Question(asked, gpu, release, of, folders)
    server = started(
        lambda: question.server,
        lambda degree: with_margin(question.updated(PARALLELISM, str(degree)).server, of),
    )
    memory_terms, longest_len = of or terms(), longest(question, server)
    return Fit(
        release=release.number,
        **_deployment_of(server),
        **_memory_of(server, memory_terms),
        **_pool_of(server),
        max_num_seqs=server.limits.max_num_seqs,
        max_num_batched_tokens=server.limits.max_num_batched_tokens,
        max_model_len=server.model.max_len,
        longest_model_len=longest_len,
        smallest_tensor_parallel=_smallest(question),
        **_margin_of(server, memory_terms, longest_len),
        captures_graphs="--enforce-eager" not in server.values,
        notes=server.notes,
        assumptions=(*server.remarks, *(server.speculative.notes if server.speculative else ())),
        unlogged=unlogged_parts(server),
        kv_tokens_without=_tokens_without(question, server),
    )


def _deployment_of(server: Server) -> dict[str, Any]:
    """The fields of a Fit that say what serves the model."""
    return {
        "model": server.model.name,
        "gpu": server.gpu.name,
        "num_gpus": server.limits.num_gpus * server.limits.num_stages,
        "num_stages": server.limits.num_stages,
        "stage_layers": _stage_layers(server),
        "num_replicas": int(server.values.get(REPLICAS, 1)),
    }


def _pool_of(server: Server) -> dict[str, Any]:
    """The fields of a Fit that say what the pool holds."""
    offloading = server.offloading
    return {
        "kv_cache_gib": server.pool.num_blocks * server.pages.page_bytes / GIB,
        "num_blocks": server.pool.num_blocks,
        "block_size": server.pages.block_size,
        "kv_tokens": num_tokens(server),
        "offloaded_tokens": offloading.num_blocks * server.pages.block_size if offloading else 0,
        "max_concurrency": concurrency(server),
    }


def _margin_of(server: Server, memory_terms: Terms, longest_len: int) -> dict[str, Any]:
    """The fields of a Fit that set the pool beside the known error of its memory; null if the
    command gives the pool.
    """
    margin = margin_of(server, memory_terms)
    return {
        "spare_gib": margin and margin.spare_gib,
        "memory_error_gib": margin and margin.error_gib,
        "may_not_start": margin is not None and margin.may_not_start,
        "kv_tokens_fewer": margin and margin.fewer_tokens,
        "longest_model_len_with_error": margin and min(longest_len, margin.longest_model_len),
    }


def _tokens_without(question: Question, server: Server) -> dict[str, int]:
    """The tokens of the pool without each option that changes them, by option, 0 if no server
    starts so; empty if the command gives the pool.
    """
    if server.pool.memory is None:
        return {}
    moving = [name for name in MOVES_TOKENS if name in server.values]
    without = {name: _tokens_of(question.without(name)) for name in moving}
    return {name: tokens for name, tokens in without.items() if tokens != num_tokens(server)}


def _tokens_of(question: Question) -> int:
    try:
        return num_tokens(question.server)
    except DoesNotStart:
        return 0


def _memory_of(server: Server, memory_terms: Terms) -> dict[str, Any]:
    """The fields of a Fit that say how the memory of a GPU is divided; null if the command gives
    the pool.
    """
    memory, seen = server.pool.memory, seen_gib(server.gpu, memory_terms)
    return {
        "gpu_memory_gib": seen.gib,
        "gpu_memory_utilization": server.utilization,
        "seen_by_torch": seen.by_torch,
        "weights_gib": memory.weights if memory else None,
        "drafter_gib": _drafter_gib(server) if memory else None,
        "encoder_gib": memory.encoder if memory else None,
        "adapters_gib": memory.adapters if memory else None,
        "activation_gib": memory.activation if memory else None,
        "non_torch_gib": memory.non_torch if memory else None,
        "cuda_graphs_gib": memory.cuda_graphs if memory else None,
        "activation_rmse_gib": memory_terms.rmse_gib,
    }


def _stage_layers(server: Server) -> str | None:
    """The layers of the pipeline stage whose pool is the smallest; None without a pipeline."""
    if len(server.stages) == 1:
        return None
    layers = server.pool.stage.layers
    return f"{layers.start}-{layers.stop - 1}"


def _drafter_gib(server: Server) -> float:
    """Weights of the drafter on each GPU, which are part of all weights."""
    return server.drafter.weight_bytes / server.limits.num_gpus / GIB


def concurrency(server: Server) -> float:
    """vLLM's maximum concurrency: pools of one sequence of the longest length."""
    return server.pages.concurrency(server.pool.num_blocks, server.model.max_len)


def num_tokens(server: Server) -> int:
    """vLLM's "GPU KV cache size", as the release computes it."""
    return logged_tokens(server.pages, server.pool.num_blocks, server.model.max_len, server.release)


def kv_lines(server: Server) -> list[str]:
    """The two lines that vLLM logs at its start."""
    return logged_lines(num_tokens(server), server.model.max_len, concurrency(server))


def rule_lines(server: Server, choices: Mapping[str, str]) -> list[str]:
    """The rules that follow from the release and the command, one line. choices: overrides by key;
    a plug-in, and the paper's own version of vLLM, have their watermark, which their summary says.
    """
    values = server.values
    reserves = values.get("--scheduler-reserve-full-isl") != OFF
    admission = "its whole prompt" if reserves else "its first chunk"
    groups = len(server.pages.windows)
    null = "page, of one group" if groups > 1 else "block"
    has_own = choices.get("policy", "") not in ("", *WITH_WATERMARK) or WATERMARK in choices
    watermark = "" if has_own else "no watermark, "
    return [
        f"vLLM {server.release.number}: a request is admitted if {admission} fits, "
        f"{watermark}one null {null}; pages of {server.pages.page_bytes:,} bytes, {groups} to a "
        f"block of {server.pages.block_size} tokens"
    ]


def longest(question: Question, server: Server) -> int:
    """The longest --max-model-len that starts; no longer than a batch if prompts are not cut."""
    any_length = question.updated("--max-model-len", "auto")
    if server.values.get(CHUNKS) == OFF and BUDGET in server.values:
        max_len = any_length.updated(CHUNKS, ON).server.model.max_len
        max_len = min(max_len, server.limits.max_num_batched_tokens)
    else:
        max_len = any_length.server.model.max_len
    return max(max_len, server.model.max_len)


def _smallest(question: Question) -> int | None:
    """The smallest tensor parallelism that starts, of powers of two; None: none does."""
    return smallest_degree(lambda degree: question.updated(PARALLELISM, str(degree)).server)


def lines_of(fit: Fit) -> list[str]:
    """The answer for the terminal."""
    rows = [(name, value) for name, value in _sizes(fit) if value is not None]
    width = max(len(name) for name, _ in rows) + 2
    return [
        f"{fit.model} on {fit.num_gpus} x {fit.gpu}, vLLM {fit.release}; GiB on each GPU",
        *(f"  {name:<{width}}{value:8.2f}" for name, value in rows),
        *_memory_lines(fit),
        *replica_lines(fit.num_replicas),
        *_pool_lines(fit),
        *_limit_lines(fit),
        *(f"assumed: {note}" for note in fit.assumptions),
        *([_adapters_line(fit)] if fit.adapters_gib else []),
        *(f"harmless, ignored: {note}" for note in fit.notes),
    ]


def _memory_lines(fit: Fit) -> Iterator[str]:
    """Remarks on the memory: whose it is, what it leaves, and its error."""
    if fit.stage_layers is not None:
        yield (
            f"  layers {fit.stage_layers}: the one of {fit.num_stages} pipeline stages with the "
            "smallest pool, whose blocks all have"
        )
    if fit.gpu_memory_utilization > LARGE_SHARE and fit.weights_gib is not None:
        left = fit.gpu_memory_gib * (1 - fit.gpu_memory_utilization)
        yield (
            f"  --gpu-memory-utilization {fit.gpu_memory_utilization:g} leaves {left:.2f} GiB for "
            f"CUDA's context (about {CONTEXT_GIB}), other processes and what is allocated later"
        )
    if not fit.seen_by_torch:
        yield f"  {UNSEEN}"
    if fit.weights_gib is not None:
        if fit.captures_graphs and not fit.cuda_graphs_gib:
            yield f"  {_graphs(fit.gpu_memory_gib * (1 - fit.gpu_memory_utilization))}"
        yield from error_lines(fit)


def _graphs(left_gib: float) -> str:
    """The memory of CUDA graphs that are captured after the pool. left_gib: what is not usable."""
    taken = "CUDA graphs take {} to {} GiB of the".format(*GRAPHS_GIB)
    effect = ", so the server may run out of memory" if graphs_may_not_fit(left_gib) else ""
    return (
        f"{taken} {left_gib:.2f} GiB that are not usable: this release captures them after the "
        f"pool, which stays as it is{effect}"
    )


def _pool_lines(fit: Fit) -> Iterator[str]:
    """The two lines that vLLM logs, and remarks on them."""
    yield from logged_lines(fit.kv_tokens, fit.max_model_len, fit.max_concurrency)
    error_gib, fewer = fit.memory_error_gib, fit.kv_tokens_fewer
    if error_gib is not None and error_gib > fit.activation_rmse_gib:
        yield (
            f"  {fit.kv_tokens:,} tokens, {fewer:,} fewer if the activation is {error_gib:.2f} GiB "
            "more than computed, as in the start-up above"
        )
    if fit.may_not_start:
        yield (
            f"  starts with {fit.spare_gib:.2f} GiB to spare, less than the {error_gib:.2f} GiB by "
            "which logged start-ups differed: it may not start"
        )
    for option, tokens in fit.kv_tokens_without.items():
        yield _tokens_moved(option, fit.kv_tokens - tokens, tokens)
    by_tokens = fit.kv_tokens / fit.max_model_len
    if abs(by_tokens - fit.max_concurrency) > EQUAL_SHARES * fit.max_concurrency:
        slots = fit.num_blocks * fit.block_size
        yield (
            f"  (the {slots:,} tokens of all blocks over {slots / fit.kv_tokens:.3g} groups of "
            f"layers; a request of {fit.max_model_len:,} takes "
            f"{fit.num_blocks / fit.max_concurrency:,.0f} blocks, for windows and states do not "
            "keep all of its tokens)"
        )
    if fit.block_size % BLOCK_SIZE:
        yield (
            f"blocks of {fit.block_size} tokens: FlexAttention serves them, since no other kernel "
            "takes them; vLLM warns that it is slower, and testbed run refuses it"
        )
    if fit.offloaded_tokens:
        yield f"CPU cache below the GPUs: {fit.offloaded_tokens:,} tokens"


def _tokens_moved(option: str, gained: int, without: int) -> str:
    """The tokens that an option takes from the pool, or gives it."""
    line = f"  without {option} {without:,} tokens: "
    if not without:
        return f"  without {option} it does not start"
    if option == CACHE_TYPE:
        return f"{line}it gives {gained:,}; what it does to the answers is not modelled"
    return f"{line}it takes {-gained:,}"


def _limit_lines(fit: Fit) -> Iterator[str]:
    """The ends of what starts."""
    sure, limit = fit.longest_model_len_with_error, f"{fit.longest_model_len:,}"
    if sure is not None and sure < fit.longest_model_len:
        with_error = f"{sure:,}" if sure else "none"
        limit += f"; with {fit.memory_error_gib:.2f} GiB less of pool: {with_error}"
    yield f"largest --max-model-len that starts: {limit}"
    yield f"smallest --tensor-parallel-size that starts: {fit.smallest_tensor_parallel}"
    yield from host_lines(max(fit.num_gpus, fit.smallest_tensor_parallel or 0))


def _adapters_line(fit: Fit) -> str:
    """The least that adapters cost: the bytes of their slots, read beside the weights."""
    if not fit.weights_gib or not fit.adapters_gib:
        return ADAPTERS
    share = fit.adapters_gib / fit.weights_gib
    return (
        f"{ADAPTERS}: a decode that has all of them reads {share:.1%} more weights, which is "
        "the least that they cost; the launches of their kernels come on top"
    )


def replica_lines(num_replicas: int) -> list[str]:
    """The line that says to which engines of data parallelism the numbers apply."""
    if num_replicas == 1:
        return []
    return [f"{num_replicas} replicas ({REPLICAS}): pool, tokens and concurrency of each engine"]


def _sizes(fit: Fit) -> list[tuple[str, float | None]]:
    by = "as torch sees it" if fit.seen_by_torch else "by data sheet or driver"
    share = fit.gpu_memory_utilization
    usable = None if fit.weights_gib is None else share * fit.gpu_memory_gib
    return [
        (f"memory of a GPU, {by}", fit.gpu_memory_gib),
        (f"usable (gpu_memory_utilization {share:g})", usable),
        ("weights", fit.weights_gib),
        ("  of these the drafter's", fit.drafter_gib or None),
        ("  of these the encoder's, of images", fit.encoder_gib or None),
        ("LoRA adapters", fit.adapters_gib or None),
        ("activation of the profiling run", fit.activation_gib),
        ("other memory (CUDA, NCCL)", fit.non_torch_gib),
        ("CUDA graphs", fit.cuda_graphs_gib or None),
        (f"KV cache ({fit.num_blocks:,} blocks of {fit.block_size} tokens)", fit.kv_cache_gib),
    ]
