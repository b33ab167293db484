"""Latencies of whole batches against kernels: steps from differences, NCCL's all-reduces, a planted wait."""

import pandas as pd
import pytest
from test_import_aiconfigurator import SHEET, attention, gemms

from experiments.commands import validate_batches
from experiments.validation.a100_kernels import dense_gpts, prices
from experiments.validation.batches import Batch, Predicted, partner, predict, steps
from testbed.core.errors import InputError

pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")

SHAPES = pd.DataFrame(
    [("small", 2, 4, 16, 512)], columns=["model", "num_layers", "num_heads", "head_size", "vocab_size"]
)
WAIT_S = 40e-6


@pytest.fixture
def kernels(tmp_path):
    """AIConfigurator's folder of a GPU, with few rows."""
    folder = tmp_path / "systems" / "data" / "toy"
    decodes = attention([(n, k, k, 1, step, n * k * (step + 1) / 1e5)
                         for n in (1, 64) for k in (1, 2, 4, 32) for step in (15, 255)], head_dim=128)  # fmt: skip
    prefills = attention([(n, k, k, isl, 0, n * isl / 1e5) for n, isl in ((1, 16), (8, 16), (1, 256), (8, 256))
                          for k in (1, 2, 4, 32)], head_dim=128)  # fmt: skip
    nccl = pd.DataFrame(
        [("all_reduce", "half", n, size, n / 1000) for n in (2, 8) for size in (64, 10**6)],
        columns=["op_name", "nccl_dtype", "num_gpus", "message_size", "latency"],
    )
    ours = pd.DataFrame([("vllm_graph", 8, 128, 0.001)], columns=["backend", "num_gpus", "message_size", "latency"])
    for name, table in (
        ("gemm/vllm/1/gemm", gemms()), ("attention/vllm/1/context_attention", prefills),
        ("attention/vllm/1/generation_attention", decodes), ("comm/nccl/2/nccl", nccl),
        ("comm/vllm/1/custom_allreduce", ours),
    ):  # fmt: skip
        path = folder / f"{name}_perf.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(path)
    (tmp_path / "systems" / "toy.yaml").write_text(SHEET)
    return folder


def test_the_partner_has_the_nearest_prompt_that_is_not_longer():
    batches = [Batch("m", 1, 4, *lens) for lens in ((20, 8), (60, 20), (128, 20), (80, 200), (80, 50))]
    assert partner(batches[3], batches) == batches[4]
    assert partner(batches[2], batches) == batches[0]
    assert partner(batches[0], batches) is None
    assert partner(Batch("m", 2, 4, 80, 200), batches) is None


def test_a_step_is_a_difference_less_that_of_the_prompts():
    short, long = Batch("m", 1, 4, 20, 8), Batch("m", 1, 4, 30, 18)
    (step,) = steps({short: 100.0, long: 153.0}, {short: Predicted(10.0, 70.0), long: Predicted(13.0, 110.0)})
    assert (step.measured_ms, step.predicted_ms) == (5.0, 4.0)
    assert step.error == pytest.approx(-0.2)
    assert not step.is_decoding


def test_a_layer_takes_kernels_nccl_and_what_is_told(kernels):
    models, batch = dense_gpts(SHAPES), Batch("small", 2, 4, 16, 3)
    bare, told = (predict(prices(kernels, models, wait)(batch), batch) for wait in ({}, {2: WAIT_S}))
    assert told.total_ms - bare.total_ms == pytest.approx(3 * 2 * WAIT_S * 1e3)  # three iterations of two layers
    assert bare.steps_ms > 2 * 2 * 2 * 2e-3  # two steps, two layers, two all-reduces of 2 us each
    with pytest.raises(InputError, match="no shape of model 'huge'"):
        prices(kernels, models, {})(Batch("huge", 1, 1, 8, 8))
    with pytest.raises(InputError, match="no all-reduce over 4 GPUs"):
        prices(kernels, models, {})(Batch("small", 4, 1, 8, 8))


def test_the_command_finds_a_planted_wait_and_keeps_what_nobody_measured(kernels, tmp_path, capsys):
    models = dense_gpts(SHAPES)
    batches = [Batch("small", 2, size, *lens) for size in (1, 8) for lens in ((16, 4), (24, 40))]
    measured = prices(kernels, models, {2: WAIT_S})
    table = [(*batch, predict(measured(batch), batch).total_ms) for batch in batches]
    path = tmp_path / "latency.csv"
    pd.DataFrame(table, columns=validate_batches.COLUMNS).to_csv(path, index=False)
    arguments = [str(path), "--kernels", str(kernels)]
    with pytest.raises(InputError, match=r"models.csv: no such file"):
        validate_batches.main(arguments)
    SHAPES.to_csv(tmp_path / "models.csv", index=False)
    validate_batches.main([*arguments, "--fit"])
    assert "2 GPUs: 40.0 us a layer" in capsys.readouterr().out
    validate_batches.main([*arguments, "--csv", str(tmp_path / "all.csv")])
    assert "within 20%" in capsys.readouterr().out
    kept = pd.read_csv(tmp_path / "all.csv")
    assert len(kept[kept["latency_ms"].isna() & (kept["predicted_ms"] > 0)]) == 7


def test_the_columns_are_those_of_a_batch():
    assert [*Batch._fields, "latency_ms"] == validate_batches.COLUMNS
