"""`testbed run` leaves a folder that says everything, and the same bytes every time."""

import json
import re

import pandas as pd
import pytest
import yaml

SHORT = ("arrivals.duration_s=60",)
FILES = {
    "config.yaml", "requests.csv", "iterations.csv", "summary.json", "timing.json",
    "memory.png", "latency_cdf.png", "batch.png", "COLUMNS.md",
}  # fmt: skip


def read(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_seed_gives_the_same_bytes_but_for_the_wall_time(testbed, tmp_path):
    for name in ("a", "b"):
        assert testbed("run", *SHORT, f"hydra.run.dir={name}")[0] == 0
    first, second = read(tmp_path / "a"), read(tmp_path / "b")
    assert set(first) == FILES
    assert json.loads(first.pop("timing.json"))["wall_s"] > 0
    second.pop("timing.json")
    assert first == second


def test_summary_has_every_promised_number(testbed, tmp_path):
    testbed("run", *SHORT, "outputs=summary", "hydra.run.dir=a")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["requests"]["arrived"] == summary["requests"]["finished"] > 30
    for name in ("normalized_latency_s_per_token", "ttft_s", "tpot_s"):
        assert list(summary[name]) == ["mean", "p50", "p90", "p95", "p99"]
    assert set(summary["throughput"]) == {"requests_per_s", "output_tokens_per_s"}
    assert set(summary["batch"]) == {"mean_per_iteration", "mean_over_time"}
    assert set(summary["memory"]) == {"token_states", "reserved", "internal", "external"}
    for average in ("per_iteration", "over_time"):
        assert sum(part[average] for part in summary["memory"].values()) == pytest.approx(1)
    assert set(summary["preemptions"]) == {"swap", "recompute"}
    assert summary["iterations"] > 1000
    assert 60 < summary["simulated_s"] < 200


def test_tables_agree_with_the_summary(testbed, tmp_path):
    testbed("run", *SHORT, "hydra.run.dir=a")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    requests, spans = (pd.read_csv(tmp_path / "a" / f"{name}.csv") for name in ("requests", "iterations"))
    latency = ((requests["finish_s"] - requests["arrival_s"]) / requests["output_len"]).mean()
    assert latency == pytest.approx(summary["normalized_latency_s_per_token"]["mean"])
    assert spans["iterations"].sum() == summary["iterations"]
    batch = (spans["running"] * spans["iterations"]).sum() / summary["iterations"]
    assert batch == pytest.approx(summary["batch"]["mean_per_iteration"])


def test_config_is_resolved_and_runs_again(testbed, tmp_path):
    testbed("run", *SHORT, "outputs=summary", "policy.block_size=32", "hydra.run.dir=a")
    config = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert config["policy"] == {"_target_": "testbed.memory.paged.paged.Paged", "block_size": 32, "watermark": 0.01}
    assert config["server"]["name"] == "a100-40gb-x1"
    assert "hydra" not in config


@pytest.mark.parametrize(
    ("model", "server", "num_gpus"),
    [("opt-66b", "a100-40gb-x4", 4), ("opt-175b", "a100-80gb-x8", 8), ("llama-3-70b", "h200-x4", 4)],
)
def test_every_model_has_its_server(testbed, tmp_path, model, server, num_gpus):
    assert testbed("run", f"model={model}", "arrivals.duration_s=5", "outputs=summary", "hydra.run.dir=a")[0] == 0
    config = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert (config["server"]["name"], config["server"]["num_gpus"]) == (server, num_gpus)


def test_a_window_stops_the_run_at_its_end(testbed, tmp_path):
    testbed("run", *SHORT, "window_s=[20,40]", "outputs=summary", "hydra.run.dir=a")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert 40 <= summary["simulated_s"] < 41
    assert summary["requests"]["finished"] < summary["requests"]["arrived"]


def test_oversized_requests_are_rejected_with_a_reason(testbed, tmp_path):
    (tmp_path / "long.csv").write_text("input_tokens,output_tokens\n10,5\n2000,100\n")
    code, *_ = testbed("run", "trace=csv", "trace.path=long.csv", *SHORT, "hydra.run.dir=a")
    requests = pd.read_csv(tmp_path / "a" / "requests.csv", keep_default_na=False)
    assert code == 0
    assert set(requests["rejected"]) == {"", "2100 tokens are more than the longest sequence of 2048"}


def test_a_prefix_cache_says_what_it_found(testbed):
    options = ("policy=prefix_caching", "trace=chat_histories", "model=llama-3-8b", "arrivals.duration_s=30")
    code, output, _ = testbed("run", *options, "outputs=summary")
    assert code == 0
    shown = re.search(
        r"([\d.]+)% of all prompt blocks found; .* ([\d,]+) blocks, .* 0 evictions", " ".join(output.split())
    )
    found, blocks = shown.groups()
    assert 0 < float(found) < 100
    assert int(blocks.replace(",", "")) > 100


def test_a_run_without_requests_is_a_run(testbed, tmp_path):
    assert testbed("run", "arrivals.rate=0.001", "arrivals.duration_s=1", "hydra.run.dir=a")[0] == 0
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["ttft_s"]["mean"] is None


@pytest.mark.parametrize("scheduler", ["mixed", "chunked", "separate", "static"])
@pytest.mark.parametrize("policy", ["paged", "contiguous_oracle"])
def test_schedulers_and_policies_combine(testbed, scheduler, policy):
    options = ("arrivals.duration_s=10", "outputs=summary", "fast_forward=false")
    code, _, error = testbed("run", f"scheduler={scheduler}", f"policy={policy}", "preemption=swap", *options)
    assert (code, error) == (0, "")
