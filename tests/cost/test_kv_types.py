"""Costs of one model with K and V of several types, which a comparison has side by side."""

import pytest
from refusals import refuses

from testbed.cost.model import Work
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_words import remark_on_ways
from testbed.run.machine import make_cost

DECODES = [
    Work(
        decode_seqs=n,
        decode_context=n * context,
        decode_max_context=longest,
        prefill=prompts,
        num_requests=n + len(prompts),
    )
    for n in (1, 8, 64, 200)
    for context, longest in ((128, 128), (1000, 4000), (8000, 8000))
    for prompts in ((), ((1500, 0),))
]

GPUS = ("l40s", "a100-80gb")
ON_ONE_GPU = {"run": {"num_gpus": 1}}


def cost_of(model, gpu, kv_bytes):
    words = (f"model={model}", f"gpu={gpu}", f"model.kv_dtype_bytes={kv_bytes}")
    config = configured(words)
    return make_cost(config.cost, config.model, config.server, config.software)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "opt-13b", "qwen2.5-7b"])
@pytest.mark.parametrize("gpu", ["h200", "h100-80gb", "a100-80gb"])
def test_wider_values_are_never_faster(model, gpu):
    """One type is measured and the others derived, all from one profile."""
    narrow, plain, wide = (cost_of(model, gpu, kv_bytes) for kv_bytes in (1, 2, 4))
    for work in DECODES:
        assert narrow.iteration(work) <= plain.iteration(work) <= wide.iteration(work), work


@pytest.mark.parametrize(
    "words",
    [
        ("gpu=h100-80gb", "model.kv_dtype_bytes=4"),
        ("gpu=h100-80gb", "model.kv_dtype_bytes=1"),
        ("gpu=h100-80gb", "model=qwen2.5-7b"),
        ("gpu=h200",),
    ],
)
def test_whole_iterations_of_a_system_are_compared_with_nothing_derived(words):
    """Sixteen bits measured by vLLM beside another type that is derived from kernels."""
    path = "cost.path=vllm-0.20/h100-llama-3.1-8b-tp1"
    config = configured(("model=llama-3.1-8b", *words, path))
    parts = config.cost, config.model, config.server, config.software
    refuses("has whole iterations of vLLM 0.20.2", make_cost, *parts)


def test_a_comparison_says_that_costs_are_of_different_origins():
    measured, derived = (
        {"cost_profile": cost_of("opt-13b", "h200", kv_bytes).fingerprint, **ON_ONE_GPU}
        for kv_bytes in (2, 4)
    )
    (remark,) = remark_on_ways({"16 bits": measured, "32 bits": derived})
    base = "derived for h200 from opt-13b on 1 x NVIDIA H200 (other cache)"
    assert f"measured on NVIDIA H200: 16 bits; {base}: 32 bits" in remark
    assert not list(remark_on_ways({"a": measured, "b": measured}))


def test_a_comparison_of_two_gpus_says_that_errors_of_costs_are_in_it():
    profiles = {gpu: cost_of("opt-13b", gpu, 2).fingerprint for gpu in GPUS}
    of_two = {gpu: {"cost_profile": profile, **ON_ONE_GPU} for gpu, profile in profiles.items()}
    (remark,) = remark_on_ways(of_two)
    assert all(f"derived for {gpu} from opt-13b" in remark for gpu in GPUS)
