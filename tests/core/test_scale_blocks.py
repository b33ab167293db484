"""Shares of FP8 experts that vLLM 0.33's refine_fp8_moe_block_shape and its check took or refused,
run on these sizes with 8 GPUs; 0.20 refuses all that are no multiples of 128.
"""

from dataclasses import replace

import pytest
from refusals import refuses

from testbed.core.errors import DoesNotStart
from testbed.core.scale_blocks import BLOCK, cut_block
from testbed.core.shapes import read_model
from testbed.experiments.vllm_server.answer import fit_of
from testbed.experiments.vllm_server.named import gpu_named
from testbed.vllm.checkpoints import Quantization
from testbed.vllm.command import read_command
from testbed.vllm.limits import Limits
from testbed.vllm.option_reader import OptionReader
from testbed.vllm.releases import release_numbered
from testbed.vllm.scale_groups import check_scale_groups

HOPPER = gpu_named("h100-80gb")


@pytest.mark.parametrize(
    ("columns", "hidden_size", "starts"),
    [
        (192, 4096, True),
        (96, 2048, True),
        (176, 4096, False),
        (24, 2048, False),
        (384, 2048, True),
        (192, 4112, False),  # a block divides the hidden size too
    ],
)
def test_blocks_of_experts_are_divided_down_to_32_columns(columns, hidden_size, starts):
    shape = read_model("qwen3-235b-a22b")
    experts = replace(shape.experts, size=8 * columns)
    model = replace(shape, hidden_size=hidden_size, experts=experts, weight_bits=8 + 32 / 128**2)
    assert _starts(model, "0.33") == starts
    assert _starts(model, "0.20") == (cut_block(model, 8) is None) == (columns % BLOCK == 0)


def _starts(model, release):
    """True if a server on 8 GPUs starts."""
    reader = OptionReader(read_command("vllm serve"), release_numbered(release), HOPPER)
    try:
        check_scale_groups(reader, model, Limits(8, 8, num_gpus=8), Quantization())
    except DoesNotStart:
        return False
    return True


@pytest.mark.parametrize("gpu", ["a100-80gb", "l40s", "h100-80gb"])
def test_without_fp8_tensor_cores_blocks_of_experts_are_not_divided(gpu):
    """As vLLM 0.33's class on these GPUs: an A100 has no backend of FP8 experts for 192 columns."""
    words = "vllm serve Qwen/Qwen3-30B-A3B-FP8 --max-model-len 4096 -tp"
    newest = release_numbered("0.33")
    assert fit_of(f"{words} 2", gpu, newest).num_gpus == 2
    if gpu == "a100-80gb":
        refuses("no whole blocks", fit_of, f"{words} 4", gpu, newest)
        assert fit_of(f"{words} 4 --enable-expert-parallel", gpu, newest).num_gpus == 4
    else:
        assert fit_of(f"{words} 4", gpu, newest).num_gpus == 4
