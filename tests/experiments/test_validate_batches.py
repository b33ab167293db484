"""Latencies of whole batches against kernels: steps from differences, NCCL's all-reduces, time beyond kernels."""

import pandas as pd
import pytest
from import_fixtures import write_tables
from refusals import refuses
from test_import_aiconfigurator import attention, gemms

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.model import Work
from testbed.experiments.commands.cli import call
from testbed.experiments.importers.aiconfigurator import read
from testbed.experiments.importers.imported import Requested
from testbed.experiments.validation.batches import FIELDS, Batch, costs, dense_gpts, left_over, predict, with_steps

pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")

SHAPES = pd.DataFrame(
    [("small", 2, 4, 16, 512)], columns=["model", "num_layers", "num_heads", "head_size", "vocab_size"]
)
WAIT_S = 40e-6


@pytest.fixture
def kernels(tmp_path):
    """AIConfigurator's folder of a GPU, with few rows."""
    decodes = attention([(n, k, k, 1, step, n * k * (step + 1) / 1e5)
                         for n in (1, 64) for k in (1, 2, 4, 32) for step in (15, 255)], head_dim=128)  # fmt: skip
    prefills = attention([(n, k, k, isl, 0, n * isl / 1e5) for n, isl in ((1, 16), (8, 16), (1, 256), (8, 256))
                          for k in (1, 2, 4, 32)], head_dim=128)  # fmt: skip
    nccl = pd.DataFrame(
        [("all_reduce", "half", n, size, n / 1000) for n in (2, 8) for size in (64, 10**6)],
        columns=["op_name", "nccl_dtype", "num_gpus", "message_size", "latency"],
    )
    ours = pd.DataFrame([("vllm_graph", 8, 128, 0.001)], columns=["backend", "num_gpus", "message_size", "latency"])
    return write_tables(tmp_path, {
        "gemm/vllm/1/gemm": gemms(), "attention/vllm/1/context_attention": prefills,
        "attention/vllm/1/generation_attention": decodes, "comm/nccl/2/nccl": nccl,
        "comm/vllm/1/custom_allreduce": ours,
    })  # fmt: skip


def test_a_dense_gpt_is_as_wide_as_its_heads_with_a_feed_forward_four_times_as_wide():
    assert dense_gpts(SHAPES) == {"small": ModelSpec("small", 2, 64, 4, 4, 16, 256, 2, 512, 2048, True)}


@pytest.mark.parametrize("degree", [1, 2])
def test_large_products_take_what_their_flops_need_at_the_share_of_the_peak_under_load(kernels, degree):
    """A layer of 49,152 weights, 64 tokens, 1 GFLOP/s at 0.72: each of num_gpus GPUs has its part of the FLOPs."""
    work, models = Work(prefill=((64, 0),)), dense_gpts(SHAPES)
    points = read(kernels, Requested(models["small"], None, degree)).sections["linear"]["points"]
    (measured,) = [us for n, us in points if n == 64]
    of_kernels = costs(kernels, models, {})(Batch("small", degree, 1, 64, 1)).iteration(work)
    sheet = kernels.parents[1] / "toy.yaml"
    sheet.write_text(sheet.read_text().replace("3.12e14", "1.0e+9"))
    under_load = costs(kernels, models, {})(Batch("small", degree, 1, 64, 1)).iteration(work)
    needed_us = 64 * 2 * 49_152 / degree / 1e9 / 0.72 * 1e6
    assert (under_load - of_kernels) / 1e6 == pytest.approx(2 * (needed_us - measured), rel=1e-6)


def test_the_cost_of_the_figures_by_card_beams_and_repeated_batches(tmp_path, capsys):
    """The 40 GB card reads 1,555 of the other's 2,039 GB/s; its batch was timed twice."""
    cards = [f"NVIDIA A100-SXM4-{size}GB" for size in (40, 40, 80)]
    rows = [(card, 2, 1, 9, 79, latency) for card, latency in zip(cards, (1.6, 1.8, 1.4), strict=True)]
    path = tmp_path / "batches.csv"
    columns = ["device", "beam_width", "batch_size", "input_len", "output_len", "latency_s"]
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    call("validate-batches", [str(path), "model=opt-13b", "--csv", str(tmp_path / "all.csv")])
    assert "opt-13b on 1 NVIDIA A100-SXM4-80GB, batch 1: median" in capsys.readouterr().out
    small, large = pd.read_csv(tmp_path / "all.csv").to_dict("records")
    assert (small["latency_ms"], large["latency_ms"]) == (1700, 1400)
    assert 1.2 < small["predicted_ms"] / large["predicted_ms"] < 2.039 / 1.555
    refuses("no column 'model'", call, "validate-batches", [str(path)])
    for word, reported in (("model", "not COLUMN=VALUE"), ("batch_size=8", "not COLUMN"), ("tensor_parallel=a", "'a'")):
        refuses(reported, call, "validate-batches", [str(path), "model=opt-13b", word])
    with pytest.raises(InputError, match="no batch of a card whose name has 'H100'"):
        call("validate-batches", [str(path), "model=opt-13b", "--device", "H100"])


def table(batches, **columns):
    return pd.DataFrame(batches, columns=FIELDS).assign(**columns)


def test_a_step_is_a_difference_to_the_nearest_shorter_prompt():
    lengths = ((20, 8), (60, 20), (30, 18), (128, 20), (80, 200))
    batches = [*(Batch("m", 1, 4, *lens) for lens in lengths), Batch("m", 2, 4, 80, 200)]
    ms = [100.0, 180.0, 153.0, 190.0, 900.0, 1.0]
    found = with_steps(table(batches, latency_ms=ms, predicted_ms=[80, 1, 123, 1, 1, 1], predicted_prompts_ms=[
        10.0, 20.0, 13.0, 30.0, 20.0, 0.0]))  # fmt: skip
    steps = found.set_index(["tensor_parallel", "input_len", "output_len"])["step_ms"]
    assert steps[1, 30, 18] == 5.0  # 53 ms, of which 3 are longer prompts, for 10 tokens
    assert steps[1, 80, 200] == (900 - 180) / 180
    assert steps[[(1, 20, 8), (2, 80, 200)]].isna().all()
    assert found.loc[2, ["predicted_step_ms", "is_decoding"]].tolist() == [4.0, False]


def test_layer_time_adds_kernels_all_reduce_and_wait(kernels):
    models, batch = dense_gpts(SHAPES), Batch("small", 2, 4, 16, 3)
    bare, missing = (predict(costs(kernels, models, wait)(batch), batch) for wait in ({}, {2: WAIT_S}))
    assert sum(missing) - sum(bare) == pytest.approx(3 * 2 * WAIT_S * 1e3)  # three iterations of two layers
    assert bare[1] > 2 * 2 * 2 * 2e-3  # two steps, two layers, two all-reduces of 2 us each
    cost = costs(kernels, models, {})(Batch("small", 1, 4, 16, 3))
    beams, plain = (predict(cost, Batch("small", 1, *sizes)) for sizes in ((2, 16, 3, 2), (4, 16, 3)))
    assert (beams[0] < plain[0], beams[1]) == (True, plain[1])
    refuses("no shape of model 'huge'", lambda: costs(kernels, models, {})(Batch("huge", 1, 1, 8, 8)))
    with pytest.raises(InputError, match=r"NCCL reduces over \[2, 8\] GPUs there, not 4"):
        costs(kernels, models, {})(Batch("small", 4, 1, 8, 8))


def test_models_are_read_and_unmeasured_batches_predicted(kernels, tmp_path, capsys):
    batches = [Batch("small", 1, size, *lens) for size in (1, 8) for lens in ((16, 4), (24, 40))]
    table(batches, latency_ms=1.0).drop(columns=["beam_width", "device"]).to_csv(tmp_path / "latency.csv", index=False)
    arguments = [str(tmp_path / "latency.csv"), "--kernels", str(kernels)]
    refuses("no shape of model 'small'", call, "validate-batches", arguments)
    SHAPES.to_csv(tmp_path / "models.csv", index=False)
    call("validate-batches", [*arguments, "--csv", str(tmp_path / "all.csv")])
    assert "within 20%" in capsys.readouterr().out
    kept = pd.read_csv(tmp_path / "all.csv")
    assert len(kept[kept["latency_ms"].isna() & (kept["predicted_ms"] > 0)]) == 7


def test_remaining_error_is_reported_by_batch_token_and_step():
    batches = [Batch("m", 1, size, *lens) for size in (1, 8, 32) for lens in ((20, 8), (60, 40), (128, 20), (80, 200))]
    took = [180 + 0.01 * b.batch_size * b.input_len + 2 * (b.output_len - 1) for b in batches]
    (line,) = left_over(table(batches, latency_ms=took, predicted_ms=100.0))
    assert line == "measured beyond its cost, m on 1: +80 ms, +10.0 us a prompt token, +2.00 ms a step (12 rows)"
    assert not list(left_over(table(batches[:3], latency_ms=1.0, predicted_ms=2.0)))
