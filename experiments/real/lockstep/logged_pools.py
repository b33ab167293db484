"""The lines that vLLM logs of its pool, and whether it starts, for the shapes that ship.

`fits` beside the installed vLLM's planner and report, on named GPUs, with prefix caching on and
off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import GIB, GpuSpec, ModelSpec
from testbed.experiments.real.lockstep.capacities import specs_of
from testbed.experiments.real.lockstep.vllm_installation import (
    Options,
    installed_release,
    logged_capacity,
    planned,
)
from testbed.experiments.vllm_server.answer import concurrency, num_tokens
from testbed.experiments.vllm_server.named import gpu_named
from testbed.vllm.attention_backends import (
    cache_problem,
    checkpoint_alignment,
    keeps_each_state,
    with_preferred_cache,
)
from testbed.vllm.command import Command, read_command
from testbed.vllm.releases import Release, nearest_release
from testbed.vllm.server import block_size_with, lengths_of, limits_with, of_states, server_with

AUTO = "auto"
GPUS = ("a100-80gb", "h100-80gb", "b200")
LENGTHS = ("2048", "8192", "100000", AUTO)
CACHING = ("--enable-prefix-caching", "--no-enable-prefix-caching")
KV_BYTES, NUM_SEQS = 6 * GIB, 64
TOO_SMALL = "KV cache"  # of the planner's answer if a sequence does not fit
PARALLELISM = (1, 2, 4, 8, 16, 32)
FULL = 0.9  # of a GPU's memory for weights and pool


@dataclass(frozen=True)
class Logged:
    """The lines that a server logs: its pages, "GPU KV cache size", "Maximum concurrency" as
    printed.
    """

    num_blocks: int
    num_tokens: int
    concurrency: str


def check_logged() -> Iterator[str]:
    """A line for each server whose log differs, or that starts on one side alone; the counts last.

    Raises InputError if vLLM is not installed.
    """
    release = nearest_release(installed_release())
    counts = {"equal": 0, "start nowhere": 0, "different": 0}
    for name, gpu, words in product(model_names(), GPUS, product(LENGTHS, CACHING)):
        asked = _asked(read_model(name), gpu_named(gpu), words, release)
        if asked is None:
            continue
        here, there = _ours(asked, release), _theirs(asked, release)
        is_equal = here == there
        kind = "different" if not is_equal else "start nowhere" if here is None else "equal"
        counts[kind] += 1
        if not is_equal:
            yield f"{name} {gpu} {' '.join(words)}: here {here}, vLLM {there}"
    yield f"{sum(counts.values()):,} servers: " + ", ".join(
        f"{count:,} {kind}" for kind, count in counts.items()
    )


def _asked(
    shape: ModelSpec, gpu: GpuSpec, words: tuple[str, ...], release: Release
) -> "Asked | None":
    """The server of a shape on the fewest GPUs that hold weights and pool; None: none does, or no
    vLLM of a release that is compared has its layers.
    """
    if shape.states and shape.states.num_tokens:
        return None  # cross-attention to images
    if words[0] != AUTO and int(words[0]) > shape.max_len:
        return None
    if cache_problem(shape, gpu, release):
        return None  # the planner does not know that no backend reads its cache
    for num_gpus in PARALLELISM:
        if shape.weight_bytes / num_gpus + KV_BYTES < FULL * gpu.memory_bytes:
            return None if shape.heads_problem(num_gpus) else Asked(shape, gpu, num_gpus, words)
    return None


@dataclass(frozen=True)
class Asked:
    """A command with a length and whether prefixes are cached."""

    shape: ModelSpec
    gpu: GpuSpec
    num_gpus: int
    words: tuple[str, ...]

    @property
    def command(self) -> Command:
        length, caching = self.words
        sizes = f"--kv-cache-memory-bytes {KV_BYTES} --max-num-seqs {NUM_SEQS}"
        sizes += " --enforce-eager"  # graphs need a block of states a sequence: see --starts
        words = f"-tp {self.num_gpus} --max-model-len {length} {sizes} {caching}"
        return read_command(f"vllm serve model {words}")


def _ours(asked: Asked, release: Release) -> Logged | None:
    """The pool by `fits`; None: it does not start."""
    try:
        server = server_with(asked.command, asked.shape, asked.gpu, release)
    except InputError:
        return None
    return Logged(server.num_blocks, num_tokens(server), f"{concurrency(server):.2f}")


def _theirs(asked: Asked, release: Release) -> Logged | None:
    """The lines that the installed vLLM logs for these layers; None: its planner refuses."""
    shape, gpu = asked.shape, asked.gpu
    limits = limits_with(asked.command, shape, gpu, release)
    size = block_size_with(asked.command, shape, gpu, release)
    model = with_preferred_cache(of_states(shape, release), gpu, release)
    length, caching = asked.words
    states = _states(model, gpu, release, caches=caching == CACHING[0])
    options = Options(
        1,
        16,
        lengths_of(shape, release)[1] if length == AUTO else int(length),
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        asynchronous=True,
        caches=caching == CACHING[0],
        mamba_cache_mode=states.get("mamba_cache_mode", "none"),
    )
    specs = specs_of(model, asked.num_gpus, size, states)
    try:
        config, cache = planned(options, specs, KV_BYTES, fits_length=length == AUTO)
    except ValueError as error:
        if TOO_SMALL not in str(error):
            raise
        return None
    tokens, most = logged_capacity(config, cache)
    return Logged(cache.num_blocks, tokens, f"{most:.2f}")


def _states(model: ModelSpec, gpu: GpuSpec, release: Release, *, caches: bool) -> dict[str, Any]:
    """Options of vLLM's states of a model: those of its MambaSpec."""
    if model.states is None or not caches:
        return {}
    if keeps_each_state(model, release):
        return {"mamba_cache_mode": "all"}
    alignment = checkpoint_alignment(model, gpu, release)
    exported: dict[str, Any] = {}
    if alignment is not None:
        exported = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": alignment}
    return {"mamba_cache_mode": "align", **exported}
