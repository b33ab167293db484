"""The pool of pages of vLLM's server: given by its command, or what its memory leaves."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.core.errors import DoesNotStart
from testbed.core.specs import GIB
from testbed.speculation.drafter_memory import DrafterMemory
from testbed.vllm.checkpoints import Quantization
from testbed.vllm.limits import Limits
from testbed.vllm.memory import ServerMemory, Terms, memory_of, seen_gib, terms
from testbed.vllm.option_reader import ESTIMATE_GRAPHS, OptionReader
from testbed.vllm.padded_experts import expert_padding_bytes
from testbed.vllm.pages import Pages
from testbed.vllm.stages import Stage
from testbed.vllm.start_refusals import CONTEXT_GIB, check_free_memory

BLOCKS, BYTES = "--num-gpu-blocks-override", "--kv-cache-memory-bytes"


class Pool(NamedTuple):
    """The pages of a pool, with the memory that they follow from (None: the command gives them).

    num_checked: vLLM starts only if one sequence of the longest length fits into these pages.
    stage: that whose pool it is.
    """

    memory: ServerMemory | None
    num_blocks: int
    num_checked: int
    stage: Stage


@dataclass(frozen=True)
class PoolSizing:
    """All that the pool of a command's server follows from but the limits of its batch.

    pages: of the whole model; each stage has its share. utilization: of the GPU's memory.
    adapters_gib: on each GPU. num_positions: of the rope. terms: None for those that ship.
    """

    reader: OptionReader
    stages: Sequence[Stage]
    pages: Pages
    utilization: float
    drafter: DrafterMemory
    adapters_gib: float
    num_positions: int
    quantization: Quantization
    terms: Terms | None = None

    def pool(self, limits: Limits) -> Pool:
        """The smallest pool of the stages, beside what batches of these limits take; vLLM gives all
        stages as many blocks. Raises DoesNotStart if vLLM does not.
        """
        pools = list[Pool]()
        for stage in self.stages:
            memory = self._memory(stage, limits)
            counts = self._blocks(memory, stage.pages(self.pages))
            pools.append(Pool(None if self._is_given else memory, *counts, stage))
        return min(pools, key=lambda pool: (pool.num_blocks, -pool.stage.page_share))

    def check(self, limits: Limits) -> None:
        """Raise InputError for a share of the memory that is not free, and for too few blocks."""
        visible_gib = seen_gib(self.reader.gpu, self.terms or terms()).gib
        check_free_memory(self.reader, visible_gib, self.utilization)
        self._check_state_blocks(limits)

    def _check_state_blocks(self, limits: Limits) -> None:
        """Raise DoesNotStart for more sequences than CUDA graphs of a model with states have
        blocks; with fewer sequences there are more blocks.
        """
        checks = 0 in self.pages.windows and self.reader.release.checks_state_blocks
        if not checks or self.reader.is_on("--enforce-eager"):
            return
        num_blocks, asked = self.pool(limits).num_blocks, limits.max_num_seqs
        if asked <= num_blocks:
            return

        def are_too_many(num_seqs: int) -> bool:
            return num_seqs > self.pool(replace(limits, max_num_seqs=num_seqs)).num_blocks

        largest = bisect_left(range(asked), True, lo=num_blocks, key=are_too_many) - 1
        raise self._does_not_start(
            f"max_num_seqs, {asked:,}, exceeds the {num_blocks:,} blocks of the states",
            f"{self.reader.named('--max-num-seqs')} {largest} starts",
        )

    @property
    def _is_given(self) -> bool:
        return self._given(self.pages) is not None

    def _given(self, pages: Pages) -> int | None:
        """The pages that the command gives; None: they follow from the memory."""
        if self.reader.value(BLOCKS) is not None:
            return self.reader.whole(BLOCKS, 1)
        num_bytes = self.reader.number(BYTES)
        return None if num_bytes is None else int(num_bytes) // pages.page_bytes

    def _blocks(self, memory: ServerMemory, pages: Pages) -> tuple[int, int]:
        """The blocks of a GPU with this memory, and those that are checked (`Pool` has both)."""
        given = self._given(pages)
        if given is None:
            num_blocks = self._found(memory, pages)
        else:
            self._check_room(memory, given * pages.page_bytes / GIB)
            num_blocks = given
        num_checked = num_blocks
        if self.reader.release.checks_usable_blocks:
            num_checked -= 1
        elif self.reader.value(BLOCKS) is not None and not self.reader.release.checks_override:
            num_checked = self._found(memory, pages)
        return num_blocks, num_checked

    def _found(self, memory: ServerMemory, pages: Pages) -> int:
        """The pages that the memory has room for."""
        if memory.kv_cache <= 0:
            adapters = f"{memory.adapters:.2f} of LoRA adapters, " if memory.adapters else ""
            raise self._does_not_start(
                "no available memory for the cache blocks: "
                f"{memory.weights:.2f} GiB of weights, {adapters}{memory.activation:.2f} "
                f"of activation and {memory.non_torch:.2f} of other memory leave nothing of "
                f"{memory.budget:.2f} GiB on each {self.reader.gpu.name}",
                f"raise {self._what_helps(memory)}",
            )
        return int(memory.kv_cache * GIB) // pages.page_bytes

    def _what_helps(self, memory: ServerMemory) -> str:
        """The options that make room for a cache: a larger share of the GPU only if its whole
        memory, but for CUDA's context, is enough.
        """
        named = self.reader.named
        gpus = named("--tensor-parallel-size")
        if memory.adapters and memory.kv_cache + memory.adapters > 0:
            gpus += f", or lower {named('--max-loras')} or {named('--max-lora-rank')}"
        most = memory.budget / self.utilization - CONTEXT_GIB
        is_enough = memory.kv_cache + most - memory.budget > 0
        return f"{named('--gpu-memory-utilization')} or {gpus}" if is_enough else gpus

    def _check_room(self, memory: ServerMemory, pool_gib: float) -> None:
        """Raise DoesNotStart for a given pool that the GPU has no room for beside the weights."""
        visible = memory.budget / self.utilization
        weights = memory.weights + memory.adapters
        if weights + pool_gib > visible:
            raise self._does_not_start(
                f"{weights:.2f} GiB of weights and {pool_gib:.2f} of KV cache are more than the "
                f"{visible:.2f} GiB of each {self.reader.gpu.name}",
                f"give a smaller pool, or raise {self.reader.named('--tensor-parallel-size')}",
            )

    def _memory(self, stage: Stage, limits: Limits) -> ServerMemory:
        """The memory that vLLM's profiling finds on each GPU of a stage; a drafter's weights, and
        what experts are padded by, are among the weights.
        """
        memory = memory_of(
            stage,
            self.reader.gpu,
            limits,
            self.utilization,
            with_encoder=not self.reader.is_on("--language-model-only"),
            graphs_are_part=self._subtracts_graphs,
            of=self.terms,
            num_positions=self.num_positions,
        )
        of_server = self.reader.gpu, self.reader.release, self.quantization
        padding = expert_padding_bytes(stage.model, limits, *of_server)
        more_weights = (self.drafter.weight_bytes / limits.num_gpus + padding) / GIB
        weights = memory.weights + more_weights
        return replace(memory, weights=weights, adapters=self.adapters_gib)

    @property
    def _subtracts_graphs(self) -> bool:
        """True if CUDA graphs are subtracted; the environment may switch it, and an option may let
        none be captured.
        """
        if self.reader.is_on("--enforce-eager"):
            return False
        value = self.reader.environment.get(ESTIMATE_GRAPHS)
        return self.reader.release.subtracts_graphs if value is None else value != "0"

    def _does_not_start(self, problem: str, remedy: str) -> DoesNotStart:
        key = self.reader.place("the server")
        return DoesNotStart(key=key, problem=problem, remedy=remedy)
