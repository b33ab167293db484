"""MXFP4 experts are padded to whole tiles of the kernels that a GPU has (vLLM 0.19 and 0.33)."""

import pytest

from testbed.core.shapes import read_model
from testbed.core.specs import GIB
from testbed.experiments.vllm_server.named import gpu_named
from testbed.vllm.limits import Limits
from testbed.vllm.padded_experts import expert_padding_bytes
from testbed.vllm.releases import release_numbered

OF_120B = 36 * 128  # experts of gpt-oss-120b


def padding_gib(model, gpu, release="0.33", **limits):
    limit = Limits(1024, 8192, **limits)
    served_by = release_numbered(release)
    return expert_padding_bytes(read_model(model), limit, gpu_named(gpu), served_by) / GIB


def of_experts(hidden, columns, count=OF_120B):
    """GiB of three matrices each, in MXFP4, beyond those of 2,880 x 2,880."""
    return 3 * (hidden * columns - 2880 * 2880) * 4.25 / 8 * count / GIB


def test_marlin_pads_the_hidden_size_to_256_and_columns_to_128():
    """A start-up on an A100 logged 13.72 GiB of gpt-oss-20b, 0.9 more than the file has."""
    assert padding_gib("gpt-oss-20b", "a100-80gb") == pytest.approx(of_experts(3072, 2944, 24 * 32))
    assert padding_gib("gpt-oss-120b", "l40s") == pytest.approx(of_experts(3072, 2944))


def test_a_b200_pads_columns_by_release():
    assert padding_gib("gpt-oss-120b", "b200") == pytest.approx(of_experts(3072, 2944))
    assert padding_gib("gpt-oss-120b", "b200", "0.19") == pytest.approx(of_experts(3072, 3072))


def test_hopper_pads_a_gpus_part_of_the_columns_alone():
    assert padding_gib("gpt-oss-120b", "h100-80gb") == 0
    quarters = 3 * 2880 * (768 - 720) * 4.25 / 8 * OF_120B / GIB
    assert padding_gib("gpt-oss-120b", "h100-80gb", num_gpus=4) == pytest.approx(quarters)
    whole = {"num_gpus": 4, "has_whole_experts": True}
    assert padding_gib("gpt-oss-120b", "h100-80gb", **whole) == 0
    shared = padding_gib("gpt-oss-120b", "l40s", **whole)
    assert shared == pytest.approx(of_experts(3072, 2944) / 4)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b", "llama-3.1-8b"])
def test_weights_of_other_types_are_not_padded(model):
    assert padding_gib(model, "a100-80gb") == 0
