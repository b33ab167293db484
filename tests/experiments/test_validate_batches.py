"""Latencies of whole batches against kernels: steps from differences, the all-reduces of NCCL,
whole reports.
"""

import pandas as pd
import pytest
from import_fixtures import write_every_table
from refusals import refuses

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.experiments.cli.main import call
from testbed.experiments.real.validation.batches import (
    FIELDS,
    Batch,
    costs,
    dense_gpts,
    predict,
    with_steps,
)

pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")

SHAPES = pd.DataFrame(
    [("small", 2, 4, 16, 512)],
    columns=["model", "num_layers", "num_heads", "head_size", "vocab_size"],
)
WAIT_S = 40e-6


@pytest.fixture
def kernels(tmp_path):
    return write_every_table(tmp_path)


def test_a_dense_gpt_is_as_wide_as_its_heads_with_a_feed_forward_four_times_as_wide():
    assert dense_gpts(SHAPES) == {
        "small": ModelSpec("small", 2, 64, 4, 4, 16, 256, 2, 512, 2048, True)
    }


def test_the_cost_of_the_figures_by_card_beams_and_repeated_batches(tmp_path):
    """The 40 GB card reads 1,555 of the other's 2,039 GB/s; its batch was timed twice."""
    cards = [f"NVIDIA A100-SXM4-{size}GB" for size in (40, 40, 80)]
    rows = [
        ("opt-13b", card, 2, 1, 9, 79, latency)
        for card, latency in zip(cards, (1.6, 1.8, 1.4), strict=True)
    ]
    path = tmp_path / "batches.csv"
    columns = ["model", "device", "beam_width", "batch_size", "input_len", "output_len"]
    columns.append("latency_s")
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    call("validate batches", [str(path), "--csv", str(tmp_path / "all.csv")])
    small, large = pd.read_csv(tmp_path / "all.csv").to_dict("records")
    assert (small["latency_ms"], large["latency_ms"]) == (1700, 1400)
    assert (small["beam_width"], large["beam_width"]) == (2, 2)
    assert small["error"] == pytest.approx(small["predicted_ms"] / 1700 - 1, abs=1e-4)
    assert 1.2 < small["predicted_ms"] / large["predicted_ms"] < 2.039 / 1.555
    for change, reported in (
        ({"model": None}, "no column 'model'"),
        ({"tensor_parallel": "a"}, "'a'"),
        ({"device": "NVIDIA Toy"}, "device 'NVIDIA Toy': no data sheet of such a card"),
    ):
        pd.DataFrame(rows, columns=columns).assign(**change).dropna(axis=1).to_csv(
            path, index=False
        )
        refuses(reported, call, "validate batches", [str(path)])


def table(batches, **columns):
    return pd.DataFrame(batches, columns=FIELDS).assign(**columns)


def test_a_step_is_a_difference_to_the_nearest_shorter_prompt():
    lengths = ((20, 8), (60, 20), (30, 18), (128, 20), (80, 200))
    batches = [
        *(Batch("m", 1, 4, *lens) for lens in lengths),
        Batch(model="m", tensor_parallel=2, batch_size=4, input_len=80, output_len=200),
    ]
    ms = [100.0, 180.0, 153.0, 190.0, 900.0, 1.0]
    compared = with_steps(
        table(
            batches,
            latency_ms=ms,
            predicted_ms=[80, 1, 123, 1, 1, 1],
            predicted_prompts_ms=[10.0, 20.0, 13.0, 30.0, 20.0, 0.0],
        )
    )
    steps = compared.set_index(["tensor_parallel", "input_len", "output_len"])["step_ms"]
    assert steps[1, 30, 18] == 5.0  # 53 ms, of which 3 are longer prompts, for 10 tokens
    assert steps[1, 80, 200] == (900 - 180) / 180
    assert steps[[(1, 20, 8), (2, 80, 200)]].isna().all()
    assert compared.loc[2, ["predicted_step_ms", "is_decoding"]].tolist() == [4.0, False]


def test_layer_time_adds_kernels_all_reduce_and_wait(kernels):
    models = dense_gpts(SHAPES)
    batch = Batch(model="small", tensor_parallel=2, batch_size=4, input_len=16, output_len=3)
    bare, missing = (
        predict(costs(kernels, models, wait)("small", 2, ""), batch) for wait in ({}, {2: WAIT_S})
    )
    assert sum(missing) - sum(bare) == pytest.approx(
        3 * 2 * WAIT_S * 1e3
    )  # three iterations of two layers
    assert bare[1] > 2 * 2 * 2 * 2e-3  # two steps, two layers, two all-reduces of 2 us each
    cost = costs(kernels, models, {})("small", 1, "")
    beams, plain = (
        predict(cost, Batch("small", 1, *sizes)) for sizes in ((2, 16, 3, 2), (4, 16, 3))
    )
    assert (beams[0] < plain[0], beams[1]) == (True, plain[1])
    refuses("model=huge: ", lambda: costs(kernels, models, {})("huge", 1, ""))
    with pytest.raises(InputError, match="toy: "):
        costs(kernels, models, {})("small", 4, "")


def every_batch():
    """Batches of many sizes, each with a latency (ms)."""
    sizes = ((2, 8), (1, 33), (1, 1), (2, 32), (1, 8), (2, 1))
    lengths = ((16, 4), (24, 40), (20, 12), (200, 30))
    batches = [Batch("small", *size, *lens) for size in sizes for lens in lengths]
    took = [
        0.5 + 2e-4 * b.batch_size * b.input_len + (8 - b.tensor_parallel) * b.output_len / 10
        for b in batches
    ]
    return table(batches, latency_ms=took).drop(columns=["beam_width", "device"])


@pytest.fixture
def arguments(kernels, tmp_path):
    """Those of `validate batches` for every batch, whose model is in a file beside it."""
    every_batch().to_csv(tmp_path / "latency.csv", index=False)
    SHAPES.to_csv(tmp_path / "models.csv", index=False)
    return [str(tmp_path / "latency.csv"), "--kernels", str(kernels)]


def test_models_are_read_and_every_batch_is_predicted(arguments, tmp_path, capsys):
    call("validate batches", [*arguments, "--csv", str(tmp_path / "all.csv")])
    output, written = capsys.readouterr().out, pd.read_csv(tmp_path / "all.csv")
    measured = written[written["latency_ms"].notna()]
    took = every_batch()["latency_ms"].tolist()
    assert measured["latency_ms"].tolist() == pytest.approx(took, abs=1e-4)
    errors = measured["predicted_ms"] / measured["latency_ms"] - 1
    assert measured["error"].tolist() == pytest.approx(errors.tolist(), abs=1e-3)
    assert f"all 24 batches: median {errors.abs().median():.1%}" in output
    assert f"{(errors.abs() <= 0.2).mean():.1%} within 20%" in output
    assert output.count("beyond 20%: ") == (errors.abs() > 0.2).sum()
    others = written[written["latency_ms"].isna()]
    assert set(others["model"]) == {"dense-gpt-96"}
    assert output.count("not measured: ") == len(others)


def test_batches_of_unknown_models_and_gpus_are_refused(arguments, kernels, tmp_path):
    (kernels.parents[1] / "toy.yaml").unlink()
    message = "no data sheet .it is systems/NAME.yaml"
    refuses(message, call, "validate batches", arguments)
    write_every_table(tmp_path)
    every_batch().assign(device="NVIDIA L4").to_csv(tmp_path / "latency.csv", index=False)
    message = "measured on NVIDIA H200, a batch on NVIDIA L4 .choose by --device"
    refuses(message, call, "validate batches", arguments)
    (tmp_path / "models.csv").unlink()
    message = "model=small: has no shape here .add it to the models.*opt-13b"
    refuses(message, call, "validate batches", arguments)
