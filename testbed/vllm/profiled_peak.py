"""The peak of vLLM's profiling run: the memory of one iteration beside weights and KV cache.

The run (v1/worker/gpu_model_runner.py, GPUModelRunner.profile_run) encodes images, computes a batch
of max_num_batched_tokens and samples max_num_seqs tokens. Its peak is that of sampling or that of
the network, whichever is larger. Memory that stays meanwhile is counted in both: the workspaces of
the matrices and of the experts, and the images with what they were encoded to.
"""

from collections.abc import Mapping

from testbed.core.specs import GIB, ModelSpec
from testbed.vllm.limits import Limits

LOGIT_BYTES = 4  # vLLM samples in float32
SAMPLER_ROWS = 132  # of logits in the buffer of top-k and top-p: one for each SM of an H100
WORKSPACE_GIB = 32 / 1024  # cuBLAS's on Hopper, for the first product of matrices
KEPT_IN_NETWORK = 3  # activations of all tokens: two residuals and what attention computed
RECEIVED = 2  # activations that a pipeline stage gets: hidden states and residuals
NO_IMAGES: Mapping[str, int] = {}


def activation_gib(
    model: ModelSpec,
    limits: Limits,
    *,
    logits: float,
    hidden: float,
    image: Mapping[str, int] = NO_IMAGES,
    samples: bool = True,
    receives: bool = False,
) -> float:
    """The peak in GiB on each GPU.

    Args:
        model: its shape.
        limits: the sizes of the batch.
        logits: copies of the float32 logits that sampling holds at once.
        hidden: copies of the batch's hidden states that it holds.
        image: `values` of one image's pixels and the `tokens` that it is encoded to; empty: none.
        samples: the GPUs are of the last pipeline stage, which samples.
        receives: they get hidden states and residuals of another stage.
    """
    rows, batch = sampling_gib(model, limits)
    sampling = logits * rows + hidden * batch + sampler_gib(model, limits) if samples else 0.0
    received = RECEIVED * batch if receives else 0.0
    kept = kept_gib(model, limits, image) + received
    return max(sampling, network_gib(model, limits)) + kept


def kept_gib(model: ModelSpec, limits: Limits, image: Mapping[str, int] = NO_IMAGES) -> float:
    """GiB that stay during the whole run."""
    return WORKSPACE_GIB + expert_gib(model, limits) + images_gib(model, limits, image)


def sampling_gib(model: ModelSpec, limits: Limits) -> tuple[float, float]:
    """GiB of the rows of logits, and of the hidden states of the batch."""
    logits = limits.max_num_seqs * model.vocab_size * LOGIT_BYTES / GIB
    hidden = limits.max_num_batched_tokens * model.hidden_size * model.dtype_bytes / GIB
    return logits, hidden


def sampler_gib(model: ModelSpec, limits: Limits) -> float:
    """GiB of the buffer of top-k and top-p, and of the last tokens' hidden states, of which one
    copy has random values.
    """
    buffered = min(SAMPLER_ROWS, limits.max_num_seqs) * model.vocab_size * LOGIT_BYTES
    num_last = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    return (buffered + 2 * num_last * model.hidden_size * model.dtype_bytes) / GIB


def network_gib(model: ModelSpec, limits: Limits) -> float:
    """GiB of gate, up and their product in a dense layer, beside what its part of the graph keeps;
    0 if all layers have experts.
    """
    if model.num_expert_layers >= model.ffn_layers:
        return 0.0
    columns = model.ffn_matrices * model.ffn_size / limits.num_gpus
    columns += KEPT_IN_NETWORK * model.hidden_size
    return limits.max_num_batched_tokens * columns * model.dtype_bytes / GIB


def expert_gib(model: ModelSpec, limits: Limits) -> float:
    """The two workspaces of fused experts, which last: gate and up of all tokens, or their result
    if that is larger, and the product of both.
    """
    if model.experts is None:
        return 0.0
    rows = limits.max_num_batched_tokens * limits.num_expert_ranks * model.experts.per_token
    size = model.experts.size / limits.num_expert_parts
    width = model.experts.latent_size or model.hidden_size
    return rows * (max(2 * size, width) + size) * model.dtype_bytes / GIB


def images_gib(model: ModelSpec, limits: Limits, image: Mapping[str, int]) -> float:
    """GiB of as many images of the largest size as a batch has tokens for, and of their tokens."""
    if not image:
        return 0.0
    num_images = max(1, limits.max_num_batched_tokens // image["tokens"])
    values = image["values"] + image["tokens"] * model.hidden_size
    return num_images * values * model.dtype_bytes / GIB
