"""What `testbed fits` answers: the memory of a server, and vLLM's own two lines."""

from dataclasses import dataclass, replace

from testbed.core.errors import InputError
from testbed.core.specs import GIB
from testbed.experiments.vllm_server.command import Command, read_command
from testbed.experiments.vllm_server.memory import terms
from testbed.experiments.vllm_server.option_table import options_of
from testbed.experiments.vllm_server.server import RELEASE, Server, server_of

LARGEST_PARALLELISM = 64
GRAPHS = "0.5 to 1.9 GiB come on top: vLLM 0.19 captures them after it has sized the cache"


@dataclass(frozen=True)
class Fit:
    """The answer of `testbed fits --json`; GiB on each GPU.

    weights_gib, activation_gib and non_torch_gib are null where the command gives the pool;
    activation_rmse_gib is the residual of their fit.
    """

    release: str
    model: str
    gpu: str
    num_gpus: int
    weights_gib: float | None
    activation_gib: float | None
    non_torch_gib: float | None
    kv_cache_gib: float
    num_blocks: int
    block_size: int
    kv_tokens: int
    max_model_len: int
    max_concurrency: float
    longest_model_len: int
    smallest_tensor_parallel: int | None
    activation_rmse_gib: float
    notes: tuple[str, ...]


def fit_of(text: str, gpu: str | None) -> Fit:
    """The answer for a command; raises InputError where vLLM would not start."""
    command = read_command(text)
    try:
        server = server_of(command, gpu, for_memory=True)
    except InputError as error:
        smallest = _smallest(command, gpu)
        if "does not start" not in str(error) or smallest is None:
            raise
        raise InputError(f"{error}; --tensor-parallel-size {smallest} starts") from None
    memory = server.memory
    return Fit(
        RELEASE,
        server.model.name,
        server.gpu.name,
        server.limits.num_gpus,
        memory.weights if memory else None,
        memory.activation if memory else None,
        memory.non_torch if memory else None,
        server.num_blocks * server.pages.page_bytes / GIB,
        server.num_blocks,
        server.block_size,
        server.pages.num_tokens(server.num_blocks),
        server.model.max_len,
        concurrency(server),
        _longest(command, gpu, server),
        _smallest(command, gpu),
        terms().rmse_gib,
        server.notes,
    )


def concurrency(server: Server) -> float:
    """vLLM's maximum concurrency: pools of one sequence of the longest length."""
    return server.num_blocks / server.pages.of_sequence(server.model.max_len)


def kv_lines(server: Server) -> list[str]:
    """The two lines that vLLM logs at its start."""
    num_tokens = server.pages.num_tokens(server.num_blocks)
    return logged_lines(num_tokens, server.model.max_len, concurrency(server))


def logged_lines(num_tokens: int, max_model_len: int, max_concurrency: float) -> list[str]:
    """The two lines, in vLLM's words."""
    return [
        f"GPU KV cache size: {num_tokens:,} tokens",
        f"Maximum concurrency for {max_model_len:,} tokens per request: {max_concurrency:.2f}x",
    ]


def _longest(command: Command, gpu: str | None, server: Server) -> int:
    """The longest --max-model-len that starts."""
    values = {**command.values, "--max-model-len": "auto"}
    longest = server_of(
        replace(command, values=values, options=options_of(values)), gpu, for_memory=True
    )
    return max(longest.model.max_len, server.model.max_len)


def _smallest(command: Command, gpu: str | None) -> int | None:
    """The smallest tensor parallelism that starts, of powers of two; None: none does."""
    num_gpus = 1
    while num_gpus <= LARGEST_PARALLELISM:
        values = {**command.values, "--tensor-parallel-size": str(num_gpus)}
        try:
            server_of(
                replace(command, values=values, options=options_of(values)), gpu, for_memory=True
            )
        except InputError:
            num_gpus *= 2
        else:
            return num_gpus
    return None


def lines_of(fit: Fit) -> list[str]:
    """The answer for the terminal."""
    rows = [(name, value) for name, value in _sizes(fit) if value is not None]
    width = max(len(name) for name, _ in rows) + 2
    texts = [f"{fit.model} on {fit.num_gpus} x {fit.gpu}, vLLM {fit.release}; GiB on each GPU"]
    texts += [f"  {name:<{width}}{value:8.2f}" for name, value in rows]
    if fit.weights_gib is not None:
        texts.append(f"  CUDA graphs: {GRAPHS}")
        texts.append(
            f"  expected error: {fit.activation_rmse_gib:.2f} GiB of activation on 1, 2 or 4 H100 "
            "(12 logged shapes); other GPUs, and more of them, were not measured"
        )
    texts += logged_lines(fit.kv_tokens, fit.max_model_len, fit.max_concurrency)
    texts.append(f"largest --max-model-len that starts: {fit.longest_model_len:,}")
    texts.append(f"smallest --tensor-parallel-size that starts: {fit.smallest_tensor_parallel}")
    return [*texts, *(f"harmless, ignored: {note}" for note in fit.notes)]


def _sizes(fit: Fit) -> list[tuple[str, float | None]]:
    return [
        ("weights", fit.weights_gib),
        ("activation of the profiling run", fit.activation_gib),
        ("other memory (CUDA, NCCL)", fit.non_torch_gib),
        (f"KV cache ({fit.num_blocks:,} blocks of {fit.block_size} tokens)", fit.kv_cache_gib),
    ]
