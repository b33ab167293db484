"""The sizes of a batch of vLLM's server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The sizes that decide the batch of the profiling run. num_gpus: in tensor parallelism;
    num_stages: of a pipeline, each of num_gpus GPUs. has_whole_experts: each GPU has some of the
    experts (--enable-expert-parallel), not a part of each. num_expert_ranks: engines of data
    parallelism that divide the experts, or each of them, among them.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpus: int = 1
    has_whole_experts: bool = False
    num_stages: int = 1
    num_expert_ranks: int = 1

    @property
    def divides_tokens(self) -> bool:
        """True if the GPUs of an engine divide the tokens before experts (use_sequence_parallel_moe
        in vLLM's config/parallel.py).
        """
        return self.has_whole_experts and min(self.num_gpus, self.num_expert_ranks) > 1

    @property
    def num_expert_parts(self) -> int:
        """GPUs that divide one expert."""
        return 1 if self.has_whole_experts else self.num_gpus * self.num_expert_ranks
