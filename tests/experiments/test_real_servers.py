"""Logs of real servers, where the shared data is there: how far off the simulation is, with nothing fitted."""

import csv
import os
import re
import time
from pathlib import Path

import pytest

import experiments

SHARED = Path(os.environ.get("TESTBED_SHARED", Path(__file__).parents[3] / "shared")) / "data"
RTX = SHARED / "real_vllm" / "rtxpro6000_llama-3.1-8b"
A100 = SHARED / "real_vllm" / "a100_opt-13b_distserve"
TABLES = SHARED / "aiconfigurator" / "systems" / "data" / "a100_sxm"


def errors(path):
    return {(Path(row["log"]).name, row["metric"]): float(row["error_percent"]) for row in csv.DictReader(path.open())}


@pytest.mark.skipif(not RTX.is_dir(), reason=f"no {RTX}; set TESTBED_SHARED")
def test_vllm_on_an_rtx_pro_6000_with_nothing_fitted(testbed, tmp_path):
    began = time.process_time()
    code, said, err = testbed("import-profile", str(RTX / "profile_tp1"), "--out", "rtx.json")
    assert (code, err) == (0, "")
    assert "llama-3.1-8b on 1 x NVIDIA RTX PRO 6000" in said
    arguments = ("--workload", str(RTX / "workload_token_ids.jsonl.gz"), "+system=vllm-v1", "cost=profile")
    log = str(RTX / "requests.jsonl.gz")
    code, said, err = testbed("validate", log, *arguments, "cost.path=rtx.json", "--csv", "errors.csv")
    assert (code, err) == (0, "")
    assert "35,878 of 16 tokens" in said
    found = {metric: error for (_, metric), error in errors(tmp_path / "errors.csv").items()}
    # Measured: -4.2, -1.2, -2.0, +2.0.
    assert abs(found["ttft_s_mean"]) < 4.5
    assert abs(found["tpot_s_mean"]) < 1.4
    assert abs(found["e2e_s_mean"]) < 2.2
    assert abs(found["tokens_per_s"]) < 2.1
    assert time.process_time() - began < 6  # 2.3 s on a core of its own


@pytest.mark.skipif(not (A100.is_dir() and TABLES.is_dir()), reason=f"no {A100} or {TABLES}; set TESTBED_SHARED")
def test_software_fitted_at_one_request_a_second(testbed, tmp_path):
    pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")
    assert testbed("import-profile", str(TABLES), "--model", "opt-13b", "--out", "a100.json")[0] == 0
    system = ("+system=vllm-v0", "cost=profile", "server.num_blocks=4134")  # 66,144 tokens
    one, two, three = (str(A100 / name) for name in ("vllm-100-1.csv", "vllm-200-2.csv", "vllm-300-3.csv"))
    assert testbed("fit-software", one, *system, "cost.path=a100.json", "--out", "fitted.json")[0] == 0
    code, said, _ = testbed("validate", one, two, three, *system, "cost.path=fitted.json", "--csv", "errors.csv")
    assert code == 0
    assert "fitted on this very log" in said
    found = errors(tmp_path / "errors.csv")
    # Measured: -17, -17 at 2 requests/s, a run that is 12 to 16% slower at identical work; 8, -7.
    assert abs(found["vllm-100-1.csv", "tpot_s_mean"]) < 3
    assert abs(found["vllm-200-2.csv", "tpot_s_mean"]) < 20
    assert abs(found["vllm-200-2.csv", "ttft_s_p50"]) < 20
    assert abs(found["vllm-300-3.csv", "tpot_s_mean"]) < 11
    assert abs(found["vllm-300-3.csv", "ttft_s_p50"]) < 15


@pytest.mark.skipif(not TABLES.is_dir(), reason=f"no {TABLES}; set TESTBED_SHARED")
def test_our_profiles_beside_aiconfigurators(testbed):
    pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")
    for gpu in ("h200", "a100"):
        tables = str(TABLES.with_name(f"{gpu}_sxm"))
        assert testbed("import-profile", tables, "--model", "opt-13b", "--out", f"{gpu}.json")[0] == 0
    derived = ("derive-profile", "--from", "h200-opt-13b-tp1", "--to", "a100-80gb", "--attainable", "0.86")
    assert testbed(*derived, "--out", "derived.json")[0] == 0
    # Measured: 9.4 and 7.6; goals 5 and 10.
    for first, second, most in (("h200-opt-13b-tp1", "h200.json", 10), ("derived.json", "a100.json", 8)):
        code, said, err = testbed("compare-profiles", first, second)
        assert (code, err) == (0, "")
        shapes, outside, median, *_ = re.search(r"decode iteration +(.*)", said)[1].replace("%", "").split()
        assert (shapes, outside) == ("119", "90")
        assert float(median) < most


@pytest.mark.skipif(not RTX.is_dir(), reason=f"no {RTX}; set TESTBED_SHARED")
def test_the_page_runs_as_it_is_written(testbed, tmp_path):
    page = (Path(experiments.__file__).parent / "REAL_SERVERS.md").read_text()
    lines = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1].splitlines()
    assert len(lines) == 5
    for line in lines:
        code, _, err = testbed(*line.replace("data/", f"{SHARED}/").split()[1:])
        assert (code, err) == (0, ""), line
    assert {path.name for path in tmp_path.iterdir()} >= {"rtx.json", "today.png", "blocks_of_32.csv", "arc.csv"}
