"""Result files of real clients, read back: each figure equals what the client printed, or differs
by a definition that PUBLIC_CASES names.

The files are of twelve requests that vllm bench serve 0.33.0, GuideLLM 0.8.1, aiperf 0.13.0 and
sglang.benchmark.serving 0.5.23 (with three at a time, and with all at once) sent to `testbed serve`
on 2026-11-28, without their texts and their other figures.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from testbed.traces.vllm_log import VllmLog

CLIENTS = Path(__file__).parents[1] / "inputs" / "clients"
BENCH, GUIDELLM = CLIENTS / "vllm_bench_0.33.0.json", CLIENTS / "guidellm_0.8.1.json"
AIPERF, SGLANG = CLIENTS / "aiperf_0.13.0.jsonl", CLIENTS / "sglang_0.5.23.jsonl"
PRINTED_BY_AIPERF = {  # ms, of its profile_export_aiperf.csv: mean, p50, p95, p99
    "ttft_s": (72.82, 70.03, 100.20, 105.45),
    "e2e_s": (166.35, 153.60, 211.78, 233.30),
}


@pytest.mark.parametrize("name", ["ttft", "tpot", "e2el"])
def test_vllm_s_figures_are_the_log_s(name):
    printed = json.loads(BENCH.read_text())
    log = VllmLog(str(BENCH))
    values = 1000 * getattr(log.times, f"{name.replace('e2el', 'e2e')}_s")
    assert values.mean() == pytest.approx(printed[f"mean_{name}_ms"], rel=1e-9)
    assert np.median(values) == pytest.approx(printed[f"median_{name}_ms"], rel=1e-9)
    assert np.percentile(values, 99) == pytest.approx(printed[f"p99_{name}_ms"], rel=1e-9)
    assert log.times.output_len.sum() == printed["total_output_tokens"]
    assert "1 of 12 answers came in one piece" in log.remarks[0]


@pytest.mark.parametrize("name", PRINTED_BY_AIPERF)
def test_aiperf_s_latencies_are_the_log_s(name):
    values = 1000 * getattr(VllmLog(str(AIPERF)).times, name)
    figures = (values.mean(), *np.percentile(values, (50, 95, 99)))
    assert figures == pytest.approx(PRINTED_BY_AIPERF[name], abs=0.0051)


def test_aiperf_s_gaps_are_of_its_own_count_of_tokens():
    lines = [json.loads(line)["metrics"] for line in AIPERF.read_text().splitlines()]
    times = VllmLog(str(AIPERF)).times
    gaps = [
        (line["request_latency"]["value"] - line["time_to_first_token"]["value"])
        / (line["output_sequence_length"]["value"] - 1)
        for line in lines
    ]
    printed = [line["inter_token_latency"]["value"] for line in lines]
    assert gaps == pytest.approx(printed)
    assert times.output_len.tolist() == [20] * 12  # the server's count; the client's is 71


def test_guidellm_s_means_are_the_log_s():
    metrics = json.loads(GUIDELLM.read_text())["benchmarks"][0]["metrics"]
    mean = {name: of["successful"]["mean"] for name, of in metrics.items()}
    times = VllmLog(str(GUIDELLM)).times
    assert 1000 * times.ttft_s.mean() == pytest.approx(mean["time_to_first_token_ms"])
    assert 1000 * times.tpot_s.mean() == pytest.approx(mean["inter_token_latency_ms"])
    # to the end of the answer, which comes after its last token
    assert times.e2e_s.mean() < mean["request_latency"] < times.e2e_s.mean() + 0.01
    whole = 1000 * times.e2e_s / times.output_len  # to the last token, the first included
    assert whole.mean() == pytest.approx(mean["time_per_output_token_ms"])


def test_guidellm_s_median_is_the_next_value_above_the_middle():
    metrics = json.loads(GUIDELLM.read_text())["benchmarks"][0]["metrics"]
    printed = metrics["time_to_first_token_ms"]["successful"]["median"]
    values = 1000 * VllmLog(str(GUIDELLM)).times.ttft_s
    assert np.quantile(values, 0.5, method="higher") == pytest.approx(printed)
    assert np.median(values) < printed


def sglang(run):
    """The output of SGLang's client of a run, and the log that is read back."""
    printed = json.loads(SGLANG.read_text().splitlines()[run])
    return printed, VllmLog(str(SGLANG), benchmark=run)


@pytest.mark.parametrize("run", [0, 1])
def test_sglang_s_times_to_first_token_are_the_log_s(run):
    printed, log = sglang(run)
    values = 1000 * log.times.ttft_s
    figures = (values.mean(), np.median(values), np.percentile(values, 99))
    names = ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms")
    assert figures == pytest.approx([printed[name] for name in names], rel=1e-9)
    assert log.times.output_len.sum() == printed["total_output_tokens"]
    gaps = [1000 * gap for of_answer in printed["itls"] for gap in of_answer]
    assert np.mean(gaps) == pytest.approx(printed["mean_itl_ms"])  # of chunks


@pytest.mark.parametrize("run", [0, 1])
def test_sglang_s_latencies_have_the_end_of_the_stream(run):
    """Which comes after the last token, and its TPOT has it too."""
    printed, log = sglang(run)
    after_ms = printed["mean_e2e_latency_ms"] - 1000 * log.times.e2e_s.mean()
    assert 0 < after_ms < 0.02 * printed["mean_e2e_latency_ms"]
    more = printed["mean_tpot_ms"] - 1000 * log.times.tpot_s.mean()
    assert 19 * more == pytest.approx(after_ms)
    p99 = printed["p99_tpot_ms"] - 1000 * np.percentile(log.times.tpot_s, 99)
    assert 0 < 19 * p99 < 12 * after_ms  # no more than if one answer's end had all of it


def test_sglang_s_requests_are_on_the_way_as_its_bound_says():
    printed, log = sglang(0)
    ends = log.times.arrival_s + log.times.e2e_s
    on_the_way = [
        int(np.sum((log.times.arrival_s <= start) & (start < ends)))
        for start in log.times.arrival_s
    ]
    assert max(on_the_way) == printed["max_concurrency"] == 3
    assert printed["max_concurrent_requests"] == 12  # of a second, whoever was there
    assert ends.max() == pytest.approx(printed["duration"], rel=0.03)
    assert "no times of sending" in log.remarks[0]
    assert sglang(1)[1].times.arrival_s.max() == 0
