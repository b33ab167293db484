"""MXFP4 experts are padded to whole tiles of the kernels that a GPU has (vLLM 0.19 and 0.33)."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.core.divided_weights import bytes_on_gpu
from testbed.core.hf_config import model_of
from testbed.core.shapes import read_model
from testbed.core.slots import ceil_div
from testbed.core.specs import GIB
from testbed.experiments.vllm_server.named import gpu_named
from testbed.vllm.checkpoints import Quantization
from testbed.vllm.limits import Limits
from testbed.vllm.padded_experts import SCALE_TILE, _up, expert_padding_bytes
from testbed.vllm.releases import release_numbered

PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "inputs" / "published_models.json").read_text(encoding="utf-8")
)
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


def test_a_b200_pads_experts_of_the_model_s_type():
    """Of Qwen3-30B-A3B each of 8 GPUs has 96 columns of an expert, and loads 128."""
    added = 48 * 128 * 3 * 2048 * (128 - 96) * 2 / GIB
    assert padding_gib("qwen3-30b-a3b", "b200", num_gpus=8) == pytest.approx(added)
    assert padding_gib("qwen3-30b-a3b", "b200", num_gpus=2) == 0
    assert padding_gib("qwen3-30b-a3b", "b200", "0.28", num_gpus=8) == 0
    assert padding_gib("qwen3-30b-a3b", "h200", num_gpus=8) == 0


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "qwen1.5-moe-a2.7b", "gemma-4-26b-a4b"])
def test_a_b200_serves_experts_of_another_routing_by_kernels_that_pad_none(model):
    """As vLLM 0.33's own classes: weights that are not normalised, or a rule of the model's own."""
    assert padding_gib(model, "b200", num_gpus=8) == 0


def test_engines_of_data_parallelism_divide_each_expert_or_their_number():
    """gpt-oss-20b, of 2,880 columns: two engines have 1,440 each, of which Triton's kernels make
    1,472, as vLLM 0.33's own classes have it.
    """
    found = [
        padding_gib("gpt-oss-20b", "h200", **limits)
        for limits in ({"num_expert_ranks": 2}, {"num_gpus": 2})
    ]
    assert found[0] == found[1] > 0


def test_a_b200_pads_columns_by_release():
    assert padding_gib("gpt-oss-120b", "b200") == pytest.approx(of_experts(3072, 2944))
    assert padding_gib("gpt-oss-120b", "b200", "0.19") == pytest.approx(of_experts(3072, 3072))


def of_triton(columns, kept, row=2880, count=OF_120B):
    """GiB of Triton's layout beyond experts of 2,880 x `columns` as loaded. row: the values of a
    whole row of 2,880, of either matrix; kept: the loaded scales stay.
    """
    values = (row - 2880) * 3 * columns / 2 if columns == 2880 else 0
    scales = 90 * _up(2 * columns, 256) + columns // 32 * 3072 - 90 * 3 * columns
    loaded = 90 * 3 * columns if kept else 0
    return (values + scales + loaded + 4 * (2 * columns + 2880)) * count / GIB


def test_triton_pads_scales_on_hopper_and_widens_biases():
    assert padding_gib("gpt-oss-120b", "h100-80gb") == pytest.approx(of_triton(2880, kept=False))
    whole = {"num_gpus": 4, "has_whole_experts": True}
    assert padding_gib("gpt-oss-120b", "h100-80gb", **whole) == pytest.approx(
        of_triton(2880, kept=False) / 4
    )
    shared = padding_gib("gpt-oss-120b", "l40s", **whole)
    assert shared == pytest.approx(of_experts(3072, 2944) / 4)


def test_a_gpus_part_of_the_columns_is_whole_tiles_on_hopper():
    quarter = 3 * 2880 * (768 - 720) * 4.25 / 8 * OF_120B / GIB
    found = padding_gib("gpt-oss-120b", "h100-80gb", num_gpus=4)
    assert found == pytest.approx(quarter + of_triton(768, kept=False))


def test_older_releases_pad_rows_and_keep_the_loaded_scales_on_hopper():
    found = padding_gib("gpt-oss-120b", "h100-80gb", "0.19")
    assert found == pytest.approx(of_triton(2880, kept=True, row=2944))


def test_a_start_up_of_gpt_oss_120b_logged_what_kept_scales_take():
    """64.38 GiB on a Hopper by vLLM 0.14.1, whose layout of values has shorter tiles."""
    release = replace(release_numbered("0.19"), expert_row_tile=64)
    model = read_model("gpt-oss-120b")
    added = expert_padding_bytes(model, Limits(1024, 8192), gpu_named("h100-80gb"), release)
    assert (model.weight_bytes + added) / GIB == pytest.approx(64.38, rel=0.005)


@pytest.mark.parametrize(
    ("method", "num_gpus", "measured"),
    [
        ("awq", 4, 31015988224),
        ("awq", 8, 16101633024),
        ("awq", 16, 8644455424),
        ("gptq", 8, 15879859200),
        ("gptq", 16, 8422681600),
    ],
)
def test_groups_of_experts_are_halved_until_a_gpus_part_has_whole_ones(
    tmp_path, method, num_gpus, measured
):
    """The parameters of Qwen3-235B-A22B on one GPU, whose experts have 1,536 columns and groups of
    128, in vLLM 0.33's own classes: without their scales up to 9% less.
    """
    values = {"quant_method": method, "bits": 4, "group_size": 128, "sym": True}
    config = PUBLISHED["qwen3-235b-a22b"]["config"] | {"quantization_config": values}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model, limits = model_of(path), Limits(8, 2048, num_gpus)
    of_server = gpu_named("h100-80gb"), release_numbered("0.33"), Quantization(values)
    found = bytes_on_gpu(model, model.weight_bytes, num_gpus)
    found += expert_padding_bytes(model, limits, *of_server)
    assert found == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(("inputs", "outputs"), [(2880, 5760), (720, 2880), (64, 2880)])
def test_tiles_are_those_of_the_installed_vllm(inputs, outputs):
    """Its own layouts, which run on a CPU."""
    vllm = pytest.importorskip("vllm")
    torch = pytest.importorskip("torch")
    sys.path.append(f"{vllm.__path__[0]}/third_party")
    layouts = "triton_kernels.tensor_details.layout_details"
    values = pytest.importorskip(f"{layouts}.hopper_value").HopperMXValueLayout
    scales = pytest.importorskip(f"{layouts}.hopper_scale").HopperMXScaleLayout
    release = release_numbered(".".join(vllm.__version__.split(".")[:2]))
    packed = torch.zeros(1, inputs // 2, outputs, dtype=torch.uint8)
    stored = values(packed.shape, mx_axis=1, mma_version=3).swizzle_data(packed)
    assert stored.numel() == _up(inputs, release.expert_row_tile) * outputs / 2
    scale = torch.zeros(1, ceil_div(inputs, 32), outputs, dtype=torch.uint8)
    stored = scales(scale.shape, mx_axis=1, num_warps=8).swizzle_data(scale)
    rows, columns = SCALE_TILE
    assert stored.numel() == _up(scale.shape[1], rows) * _up(outputs, columns)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b", "llama-3.1-8b"])
def test_weights_of_other_types_are_not_padded(model):
    assert padding_gib(model, "a100-80gb") == 0
