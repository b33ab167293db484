"""vLLM's releases: the facts in which they differ, each with the place in vLLM that has it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, NamedTuple, get_type_hints

from testbed.core.errors import InputError

ALL, DENSE, NONE = "all", "dense", "none"  # models that a fact is true of


class Fact(NamedTuple):
    """A fact of a release. place: file and function of vLLM, below its package."""

    meaning: str
    place: str


@dataclass(frozen=True)
class Release:
    """Facts of a release that differ from another one's, by default those of the oldest; `number`
    is its version's beginning. `facts` lists the fields with their meaning.
    """

    number: str
    utilization: Annotated[
        float,
        Fact("default of --gpu-memory-utilization", "config/cache.py CacheConfig"),
    ] = 0.9
    subtracts_graphs: Annotated[
        bool,
        Fact(
            "the KV cache is what is left after an estimate of the CUDA graphs' memory",
            "v1/worker/gpu_worker.py Worker.determine_available_memory",
        ),
    ] = False
    has_largest_limits: Annotated[
        bool,
        Fact(
            "a GPU of 160 GiB has a default of 16,384 tokens in an iteration",
            "engine/arg_utils.py EngineArgs.get_batch_defaults",
        ),
    ] = False
    caches_states: Annotated[
        bool,
        Fact(
            "prefixes of a model with states are cached by default",
            "config/model.py ModelConfig.is_prefix_caching_supported",
        ),
    ] = False
    checks_usable_blocks: Annotated[
        bool,
        Fact(
            "the server starts if the longest sequence fits the pool without its null block; else "
            "if it fits the pool with it",
            "v1/core/kv_cache_planning.py get_kv_cache_configs",
        ),
    ] = False
    checks_override: Annotated[
        bool,
        Fact(
            "the pool that is checked follows --num-gpu-blocks-override, if that is given",
            "v1/core/kv_cache_utils.py get_kv_cache_configs",
        ),
    ] = False
    caps_windows: Annotated[
        bool,
        Fact(
            "a prompt is admitted if the blocks fit that a window holds at once, not those of all "
            "its tokens",
            "v1/kv_cache_interface.py SlidingWindowSpec.max_admission_blocks_per_request",
        ),
    ] = False
    frees_after_run: Annotated[
        bool,
        Fact(
            "under asynchronous scheduling a block outside a window is freed when the iterations "
            "that read it have run, not when the next one is scheduled",
            "v1/core/kv_cache_manager.py KVCacheManager.allocate_slots",
        ),
    ] = False
    plans_beyond_stages: Annotated[
        str,
        Fact(
            "models (all, dense ones or none) of which one more batch is planned ahead than a "
            "pipeline has stages; of others one for each stage",
            "config/vllm.py VllmConfig.max_concurrent_batches",
        ),
    ] = NONE
    uncached_first: Annotated[
        bool,
        Fact(
            "a freed block without known content is taken before all cached ones, not in its turn",
            "v1/core/block_pool.py BlockPool.free_blocks",
        ),
    ] = False
    cuts_lone_prompt: Annotated[
        bool,
        Fact(
            "long_prefill_token_threshold cuts the prompt of a request that is alone too",
            "v1/core/sched/scheduler.py Scheduler.schedule",
        ),
    ] = True
    admits_with_drafts: Annotated[
        bool,
        Fact(
            "drafts count in an admission: its first chunk gets look-ahead slots, a last token "
            "rows for drafts, and each sequence a drafter's token of the budget; else the "
            "drafter's tokens are taken off the budget for max_num_seqs sequences",
            "v1/core/sched/scheduler.py Scheduler.schedule",
        ),
    ] = False
    checks_drafters_batch: Annotated[
        bool,
        Fact(
            "a server whose drafter takes all of its budget does not start; else it starts, with "
            "the whole budget",
            "config/vllm.py VllmConfig._set_max_num_scheduled_tokens",
        ),
    ] = False
    hashes_results: Annotated[
        bool,
        Fact(
            "with drafts a block is findable when the results of its tokens are in, not when the "
            "next iteration is scheduled",
            "v1/core/sched/scheduler.py Scheduler.update_from_output",
        ),
    ] = False
    hashes_next_token: Annotated[
        bool,
        Fact(
            "with drafters that read hidden states a block is known by the token behind it too; "
            "else the last block of a hit is computed again",
            "v1/core/block_pool.py BlockPool.cache_full_blocks",
        ),
    ] = False
    skips_behind_victims: Annotated[
        bool,
        Fact(
            "with priorities, a running request that loses its slots without having been scheduled "
            "in this iteration takes the turn of the one behind it with it",
            "v1/core/sched/scheduler.py Scheduler.schedule",
        ),
    ] = True
    serves_behind_victims: Annotated[
        bool,
        Fact(
            "with priorities, the running requests behind one that has lost its own slots are "
            "still served in this iteration",
            "v1/core/sched/scheduler.py Scheduler.schedule",
        ),
    ] = False
    keeps_each_state: Annotated[
        bool,
        Fact(
            "Mamba-2 whose prefixes are cached keeps a state at the end of each block; else those "
            "at the ends of chunks, as other states",
            "model_executor/models/config.py MambaModelConfig",
        ),
    ] = True
    has_any_block: Annotated[
        bool,
        Fact(
            "a --block-size that no other kernel takes is served by FlexAttention",
            "v1/attention/backends/flex_attention.py FlexAttentionBackend",
        ),
    ] = True
    windows_choose_blocks: Annotated[
        bool,
        Fact(
            "--block-size does not count for layers with a window",
            "model_executor/layers/attention/attention.py Attention.get_kv_cache_spec",
        ),
    ] = False
    exports_states: Annotated[
        bool,
        Fact(
            "a prefill exports a state within it if its kernel can: blocks are aligned to that, "
            "and a sequence has a page more",
            "v1/kv_cache_interface.py MambaSpec.max_memory_usage_bytes",
        ),
    ] = False
    has_groups_beside_events: Annotated[
        bool,
        Fact(
            "with --kv-events-config layers that cache differently have groups of their own; else "
            "it switches the hybrid manager off",
            "config/vllm.py VllmConfig.__post_init__",
        ),
    ] = False
    aligns_blocks: Annotated[
        bool,
        Fact(
            "with states a block is a multiple of what the command or the attention backend asks "
            "for; else it is only no shorter",
            "platforms/interface.py Platform._align_hybrid_block_size",
        ),
    ] = False
    latent_alignment: Annotated[
        int,
        Fact(
            "tokens of which a block of latent attention beside states is a multiple",
            "platforms/interface.py Platform._align_hybrid_block_size",
        ),
    ] = 64
    has_long_blocks: Annotated[
        bool,
        Fact(
            "attention backends of heads of 256 and more, and of masked images, have blocks of 64 "
            "and 128 tokens on Hopper and Blackwell; else blocks of 16",
            "v1/attention/backends/flash_attn.py FlashAttentionBackend.get_preferred_block_size",
        ),
    ] = False
    cuts_at_junctions: Annotated[
        bool,
        Fact(
            "a chunk of a prompt whose states are cached also ends where a prefix ends that others "
            "share, so that its state is found from the third prompt on; a block longer than a "
            "chunk is computed in several",
            "v1/core/sched/scheduler.py Scheduler._mamba_block_aligned_split",
        ),
    ] = False
    thins_checkpoints: Annotated[
        bool,
        Fact(
            "of windows and states only what a resend of the prompt reads is findable, and what "
            "prompts read that share a prefix which another one has shown; else each full block",
            "config/cache.py CacheConfig.prefix_cache_retention_interval",
        ),
    ] = False
    has_wide_states: Annotated[
        bool,
        Fact(
            "a state whose type config.json does not say is of float32; else of 16 bits",
            "model_executor/models/config.py NemotronHForCausalLMConfig",
        ),
    ] = False
    multiplies_yarn: Annotated[
        bool,
        Fact(
            "the longest sequence is the original length of a YaRN rope times its factor; else "
            "max_position_embeddings",
            "config/model.py _get_and_verify_max_len",
        ),
    ] = True
    logs_longest: Annotated[
        bool,
        Fact(
            "'GPU KV cache size' is the concurrency times the longest sequence; else the blocks of "
            "one group",
            "v1/core/kv_cache_utils.py get_kv_cache_capacity",
        ),
    ] = False
    checks_state_blocks: Annotated[
        bool,
        Fact(
            "with CUDA graphs the server starts only if a pool with states has max_num_seqs "
            "blocks; else graphs are captured for fewer sequences",
            "config/compilation.py CompilationConfig.resolve_cudagraph_mode_and_sizes",
        ),
    ] = False
    checks_fp8_cache: Annotated[
        bool,
        Fact(
            "Triton's attention backends refuse an FP8 cache below compute capability 8.9",
            "v1/attention/backends/triton_attn.py TritonAttentionBackend",
        ),
    ] = False
    checks_latent_sizes: Annotated[
        bool,
        Fact(
            "a prefill backend of latent attention takes only some sizes of heads",
            "v1/attention/backends/mla/prefill/selector.py get_mla_prefill_backend",
        ),
    ] = False
    has_half_sparse: Annotated[
        bool,
        Fact(
            "sparse attention computes, and is cached, in float16 too",
            "v1/attention/backends/mla/flashmla_sparse.py FlashMLASparseBackend",
        ),
    ] = False
    has_packed_sparse: Annotated[
        bool,
        Fact(
            "sparse attention has a backend on compute capability 12, whose cache is scaled FP8",
            "platforms/cuda.py _get_backend_priorities",
        ),
    ] = False
    divides_sparse: Annotated[
        bool,
        Fact(
            "GPUs divide the tokens of sparse attention (decode context parallelism); not known "
            "before",
            "v1/attention/backends/mla/flashmla_sparse.py FlashMLASparseMetadataBuilder",
        ),
    ] = False
    checks_cache_type: Annotated[
        bool,
        Fact(
            "a cache of 16 bits must have the weights' own type; else one is stored as the other",
            "config/vllm.py VllmConfig._reject_mismatched_float_kv_cache",
        ),
    ] = False
    checks_threshold: Annotated[
        bool,
        Fact(
            "long_prefill_token_threshold above the longest sequence is refused",
            "config/scheduler.py SchedulerConfig.verify_max_model_len",
        ),
    ] = False
    least_scale_block: Annotated[
        int,
        Fact(
            "columns of the narrowest block into which scales of FP8 experts are divided, so that "
            "a GPU's share is whole blocks",
            "model_executor/layers/fused_moe/oracle/fp8.py refine_fp8_moe_block_shape",
        ),
    ] = 128
    cuts_no_groups: Annotated[
        bool,
        Fact(
            "a GPU's share of quantised weights must be whole groups of a scale; not known before",
            "model_executor/layers/quantization/auto_awq.py BaseAWQLinearMethod.create_weights",
        ),
    ] = False
    has_marlin_alone: Annotated[
        bool,
        Fact(
            "of GPTQ checkpoints those of 4 and 8 bits, symmetric, start, and of AWQ's those of 4 "
            "bits; else GPTQ's of 2, 3, 4 and 8 bits, and AWQ's of 4 and 8",
            "model_executor/layers/quantization/auto_gptq.py AutoGPTQConfig",
        ),
    ] = False
    takes_activation_order: Annotated[
        bool,
        Fact(
            "groups of weights may be in the order of activations (desc_act, actorder)",
            "model_executor/layers/quantization/utils/gptq_utils.py "
            "normalize_and_validate_gptq_desc_act",
        ),
    ] = True
    expert_tile: Annotated[
        int,
        Fact(
            "columns of an MXFP4 expert on one GPU are a multiple of it on B200",
            "model_executor/layers/fused_moe/oracle/mxfp4.py "
            "mxfp4_round_up_hidden_size_and_intermediate_size",
        ),
    ] = 256
    pads_plain_experts: Annotated[
        bool,
        Fact(
            "a GPU's columns of experts that are not quantised are a multiple of expert_tile on "
            "B200",
            "model_executor/layers/fused_moe/oracle/unquantized.py "
            "unquantized_round_up_hidden_size_and_intermediate_size",
        ),
    ] = False
    expert_row_tile: Annotated[
        int,
        Fact(
            "inputs of an MXFP4 expert's matrix are a multiple of it on Hopper",
            "third_party/triton_kernels/tensor_details/layout_details/hopper_value.py "
            "HopperMXValueLayout.swizzle_data",
        ),
    ] = 128
    keeps_expert_scales: Annotated[
        bool,
        Fact(
            "scales of MXFP4 experts stay in memory as they were loaded, beside those of Triton's "
            "layout",
            "model_executor/layers/fused_moe/oracle/mxfp4.py convert_to_mxfp4_moe_kernel_format",
        ),
    ] = True
    looks_up_on_gpu: Annotated[
        bool,
        Fact(
            "n-gram drafts are looked up on the GPU, as many at each step, and scheduled "
            "asynchronously by default",
            "v1/worker/gpu/spec_decode/ngram/speculator.py NgramGPUSpeculator",
        ),
    ] = False
    counts_states: Annotated[
        bool,
        Fact(
            "EAGLE-3 drafters join as many hidden states as their config.json names; else three",
            "model_executor/models/llama_eagle3.py LlamaModel",
        ),
    ] = False
    drafts_for_images: Annotated[
        bool,
        Fact(
            "a whole model drafts for a model of images too; else such a server does not start",
            "v1/spec_decode/llm_base_proposer.py SpecDecodeBaseProposer",
        ),
    ] = False
    maps_vocabularies: Annotated[
        bool,
        Fact(
            "a whole model of another vocabulary drafts with use_heterogeneous_vocab; else such a "
            "server does not start",
            "config/speculative.py SpeculativeConfig",
        ),
    ] = False
    caps_by_drafter: Annotated[
        bool,
        Fact(
            "a whole model that drafts caps the longest sequence at its own; else longer sequences "
            "have no drafts",
            "config/vllm.py VllmConfig._limit_max_model_len_to_draft",
        ),
    ] = False
    offloads_by_request: Annotated[
        bool,
        Fact(
            "the OffloadingConnector's CPU cache ranks the blocks of a request together, and "
            "offers only prompts by default; else each store is newer than the last",
            "v1/kv_offload/cpu/policies/lru.py LRUCachePolicy",
        ),
    ] = False
    takes_lone_exchange: Annotated[
        bool,
        Fact(
            "--dcp-comm-backend a2a starts without --decode-context-parallel-size",
            "config/parallel.py ParallelConfig",
        ),
    ] = False
    quantises_apart: Annotated[
        bool,
        Fact(
            "--quantization fp8 of plain weights is another method than that of an FP8 checkpoint, "
            "which reads no cache of fp8_e5m2",
            "model_executor/model_loader/weight_utils.py get_quant_config",
        ),
    ] = False
    prefers_fp8: Annotated[
        bool,
        Fact(
            "GLM-5's latents are cached in FP8 on Blackwell unless the command says otherwise",
            "model_executor/models/config.py GlmMoeDsaForCausalLM",
        ),
    ] = False
    balances_usage: Annotated[
        bool,
        Fact(
            "the balancer of data parallelism counts unanswered requests, and those that wait by "
            "the usage of the KV cache; else 4 x waiting + running requests",
            "v1/engine/core_client.py DPLBAsyncMPClient.get_core_engine_for_request",
        ),
    ] = False
    transformers: Annotated[
        int,
        Fact(
            "the major version of Transformers that it requires; before 5 a null of "
            "tie_word_embeddings or use_sliding_window means false",
            "transformers/configuration_utils.py",
        ),
    ] = 4
    software: Annotated[
        str | None,
        Fact(
            "the option of `software` whose times are taken; null: those of this project's engine",
            "experiments/ACCURACY.md",
        ),
    ] = "vllm-0.19"

    def frees_late(self, plans_ahead: bool) -> bool:
        """True if a block outside a window stays until the iterations that read it have run."""
        return self.frees_after_run and plans_ahead

    def tokens_under_way(
        self,
        max_num_batched_tokens: int,
        *,
        plans_ahead: bool,
        num_stages: int = 1,
        is_dense: bool = True,
    ) -> int:
        """Tokens that may be scheduled before a block that a window has left is freed: those of one
        batch, or of a batch for each stage of a pipeline and one that is planned ahead. is_dense:
        the model has no experts.
        """
        if not self.frees_after_run:
            return max_num_batched_tokens
        is_beyond = self.plans_beyond_stages in ((ALL, DENSE) if is_dense else (ALL,))
        is_one_more = plans_ahead and (num_stages == 1 or is_beyond)
        return max_num_batched_tokens * (num_stages + is_one_more)

    def tokens_behind(self, reads_hidden_states: bool) -> int:
        """Tokens behind a block by which it is known too, if a drafter reads hidden states."""
        return int(reads_hidden_states and self.hashes_next_token)

    def blocks_again(self, reads_hidden_states: bool) -> int:
        """Blocks at the end of a hit that are computed again for such a drafter."""
        return int(reads_hidden_states and not self.hashes_next_token)


V0_19 = Release(number="0.19")
V0_20 = replace(
    V0_19,
    number="0.20",
    utilization=0.92,
    subtracts_graphs=True,
    checks_override=True,
    checks_drafters_batch=True,
    caps_windows=True,
    has_groups_beside_events=True,
    aligns_blocks=True,
    latent_alignment=16,
    has_wide_states=True,
    logs_longest=True,
    checks_state_blocks=True,
)
V0_28 = replace(
    V0_20,
    number="0.28",
    has_largest_limits=True,
    caches_states=True,
    frees_after_run=True,
    plans_beyond_stages=DENSE,
    uncached_first=True,
    admits_with_drafts=True,
    skips_behind_victims=False,
    keeps_each_state=False,
    has_any_block=False,
    windows_choose_blocks=True,
    latent_alignment=128,
    cuts_at_junctions=True,
    checks_fp8_cache=True,
    checks_latent_sizes=True,
    has_half_sparse=True,
    has_packed_sparse=True,
    checks_threshold=True,
    has_marlin_alone=True,
    expert_tile=128,
    expert_row_tile=64,
    keeps_expert_scales=False,
    counts_states=True,
    drafts_for_images=True,
    maps_vocabularies=True,
    prefers_fp8=True,
    balances_usage=True,
    transformers=5,
    software=None,
)
V0_33 = replace(
    V0_28,
    number="0.33",
    checks_usable_blocks=True,
    plans_beyond_stages=ALL,
    cuts_lone_prompt=False,
    hashes_results=True,
    hashes_next_token=True,
    serves_behind_victims=True,
    windows_choose_blocks=False,
    exports_states=True,
    has_long_blocks=True,
    thins_checkpoints=True,
    multiplies_yarn=False,
    checks_cache_type=True,
    divides_sparse=True,
    least_scale_block=32,
    cuts_no_groups=True,
    takes_activation_order=False,
    pads_plain_experts=True,
    looks_up_on_gpu=True,
    caps_by_drafter=True,
    offloads_by_request=True,
    takes_lone_exchange=True,
    quantises_apart=True,
)
RELEASES: Mapping[str, Release] = {
    release.number: release for release in (V0_19, V0_20, V0_28, V0_33)
}
DEFAULT, NEWEST = V0_19, V0_33
# A shipped profile of whole iterations, with the launches that the same host takes for other models
MEASURED = "vllm-0.20/h100-llama-3.1-8b-tp1"


def facts() -> dict[str, Fact]:
    """The facts by the name of their field."""
    hints = get_type_hints(Release, include_extras=True)
    names = [field.name for field in fields(Release) if field.name != "number"]
    return {name: hints[name].__metadata__[0] for name in names}


def release_numbered(number: str | None) -> Release:
    """The release of a version such as 0.19.0; the default one for None. Raises InputError for one
    whose facts are not known.
    """
    if number is None:
        return DEFAULT
    short = ".".join(str(number).removeprefix("v").split(".")[:2])
    if short not in RELEASES:
        as_text = f"; as text: release='{short}0'" if f"{short}0" in RELEASES else ""
        raise InputError(
            key="release",
            value=number,
            problem="the facts of this release of vLLM are not known",
            remedy=f"choose from {', '.join(RELEASES)}{as_text}",
        )
    return RELEASES[short]


def nearest_release(number: str) -> Release:
    """The newest known release that is no newer than `number`, else the oldest."""
    wanted = version_of(number)
    older = [release for release in RELEASES.values() if version_of(release.number) <= wanted]
    return older[-1] if older else DEFAULT


def version_of(number: str) -> tuple[int, ...]:
    """The first two parts of a version, which sort as numbers."""
    return tuple(int(part) for part in number.split(".")[:2] if part.isdigit())
