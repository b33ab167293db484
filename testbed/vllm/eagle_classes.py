"""Classes of EAGLE's drafters in vLLM: model_executor/models/registry.py of 0.20.2 and 0.33.0.

What 0.20 lacks is refused of 0.19, and what 0.33 lacks of 0.28.
"""

from testbed.vllm.releases import Release, version_of

SINCE = {
    "Eagle3DeepseekV2ForCausalLM": "0.19",
    "Eagle3DeepseekV3ForCausalLM": "0.19",
    "Eagle3LlamaForCausalLM": "0.19",
    "Eagle3MiniMaxM2ForCausalLM": "0.19",
    "Eagle3Qwen2_5vlForCausalLM": "0.19",
    "Eagle3Qwen3vlForCausalLM": "0.19",
    "EagleDeepSeekMTPModel": "0.19",
    "EagleLlama4ForCausalLM": "0.19",
    "EagleLlamaForCausalLM": "0.19",
    "EagleMiniCPMForCausalLM": "0.19",
    "EagleMistralLarge3ForCausalLM": "0.19",
    "LlamaForCausalLMEagle3": "0.19",
    "Eagle3Qwen3ForCausalLM": "0.28",
    "EagleCohereForCausalLM": "0.28",
    "EagleMistralForCausalLM": "0.28",
}  # the oldest release here that may have it


def class_of_drafter(architecture: str, *, is_third: bool) -> str:
    """The class for an architecture of a config.json, by vLLM's EAGLEConfig. is_third: EAGLE-3."""
    prefix = "Eagle3" if is_third else "Eagle"
    is_own = architecture.startswith(prefix) or (is_third and architecture.endswith(prefix))
    return architecture if is_own else f"{prefix}{architecture}"


def has_class(release: Release, name: str) -> bool:
    """True if a release has a class of that name."""
    return name in SINCE and version_of(SINCE[name]) <= version_of(release.number)
