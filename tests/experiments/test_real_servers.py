"""Logs of real servers, if the shared data is there: how far off the simulation is, with nothing
fitted.
"""

import csv
import os
import re
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("TESTBED_SHARED", Path(__file__).parents[3] / "shared")) / "data"
RTX = SHARED / "real_vllm" / "rtxpro6000_llama-3.1-8b"


def errors(path):
    return {
        (Path(row["log"]).name, row["metric"]): float(row["error_percent"])
        for row in csv.DictReader(path.open())
    }


# Of the logged server (meta.json); `vllm serve` would take other ones on this GPU.
LIMITS = ("scheduler.max_num_seqs=128", "scheduler.max_num_batched_tokens=2048")


@pytest.mark.slow
@pytest.mark.skipif(not RTX.is_dir(), reason=f"no {RTX}; set TESTBED_SHARED")
def test_a_carried_profile_fitted_to_the_first_half_of_a_log(testbed):
    arguments = (
        "--workload",
        str(RTX / "workload_token_ids.jsonl.gz"),
        "+system=vllm-v1",
        *LIMITS,
        "--out",
        "mine.json",
    )
    log, gpu = str(RTX / "requests.jsonl.gz"), ("--model", "llama-3.1-8b", "--gpu", "rtx-pro-6000")
    reported = testbed.done("calibrate", "fit", "profile", log, *gpu, *arguments)
    measured = {
        row.split()[0]: row.split()[-1] for row in reported.splitlines() if "_s_mean" in row
    }
    # Measured: +0.0, +0.1, +0.1 in the second half.
    assert all(abs(float(error.strip("%"))) < 3 for error in measured.values())
    assert len(measured) == 3


@pytest.mark.skipif(not RTX.is_dir(), reason=f"no {RTX}; set TESTBED_SHARED")
def test_the_commands_for_a_published_log_find_small_errors_without_fitting(testbed, tmp_path):
    page = (Path(__file__).parents[2] / "experiments" / "ACCURACY.md").read_text()
    block = r"```sh\n# needs the files of LLMServingSim\n(.*?)```"
    lines = re.search(block, page, re.DOTALL)[1].splitlines()
    imported, validated, _ = (
        testbed.done(*line.replace("data/", f"{SHARED}/").split()[1:], *more)
        for line, more in zip(lines, ((), ("--csv", "errors.csv"), ()), strict=True)
    )
    assert "llama-3.1-8b on 1 x NVIDIA RTX PRO 6000" in imported
    assert "tokens, as testbed fits sizes the pool" in validated
    measured = {metric: error for (_, metric), error in errors(tmp_path / "errors.csv").items()}
    # Measured: -4.3, -1.2, -2.0, +2.0.
    assert abs(measured["ttft_s_mean"]) < 4.5
    assert abs(measured["tpot_s_mean"]) < 1.4
    assert abs(measured["e2e_s_mean"]) < 2.2
    assert abs(measured["tokens_per_s"]) < 2.1
    assert {path.name for path in tmp_path.iterdir()} >= {"rtx.json", "today.png", "effects.csv"}
