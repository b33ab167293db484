"""The same of the other commands: one line that names the culprit, exit code 2, and nothing half-written."""

import sys

import pytest
from refused_folder import check_one_line

OTHERS = {
    "frobnicate": "frobnicate",
    "reprodce": "did you mean reproduce?",
    "reproduce fig99": "fig99",
    "reproduce table1 --lengths none.csv": "none.csv",
    "reproduce table1 --out lengths.csv": "lengths.csv",
    "list evictions": "did you mean eviction?",
    "bench --nope": "--nope",
    "check no_module:Policy": "no_module",
    "check not_a_policy:Policy": "no MemoryPolicy",
    "check own_parts:NeedsALargePool": "too small",
    "check example_policy:Slabs no_such=1": "no_such",
    "check example_policy:Slabs --slots 0": "--slots",
    "report nowhere": "nowhere",
    "compare a=nowhere": "nowhere: no such folder",
    "compare mine": "mine: has no summary.json",
    "timeline nowhere": "nowhere is not a run folder",
    "timeline mine --from x": "--from",
    "capacity paged": "paged",
    "capacity slo.ttft_s=-1": "slo.ttft_s=-1",
    "capacity slo.ttft_s=1 --share 2": "share is 2",
    "capacity slo.ttft_s=1 --low 3": "low is 3",
    "capacity slo.ttft_s=1 stop_at_latency=0.03": "stop_at_latency=0.03: a run that stops before its end",
    "capacity slo.ttft_s=1 window_s=[0,5]": "window_s=(0, 5): a run that stops before its end",
    "capacity slo.ttft_s=1 arrivals.rat=2": "did you mean arrivals.rate?",
    "capacity slo.ttft_s=1 --runs lengths.csv": "lengths.csv",
    "import-model lengths.csv": "lengths.csv: not a JSON file",
    "import-profile nowhere --out x.json": "nowhere",
    "validate nowhere.jsonl": "nowhere.jsonl",
    "validate cost=profile": "LOG: is missing",
    "validate log.csv --within nan": "'nan' is not a number above 0",
    "validate log.csv server.num_block=2": "did you mean server.num_blocks?",
    "validate log.csv trace=alpaca arrivals.rate=5": "trace=alpaca: the log has every request",
    "validate log.csv window_s=[0,5]": "window_s=[0,5]: the log has every request",
    "fit-software log.csv ++workload.num_seqs=2": "workload.num_seqs=2: the log has every request",
    "fit-software nowhere.csv": "nowhere.csv",
    "calibrate --model opt-13b:3 --out x": "does not divide",
    "calibrate --model opt-13b llama-13b --out nowhere": "need a folder",
}


@pytest.mark.parametrize("line", OTHERS)
def test_other_commands_refuse_wrong_arguments(refused, line):
    error = refused(line)
    assert all(part in error for part in OTHERS[line].split(" is ")), error


def test_calibrate_names_missing_packages(testbed, monkeypatch):
    for name in ("testbed.kernels.measure.profile_sections", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    code, _, error = testbed("calibrate", "--model", "opt-13b", "--out", "x.json")
    check_one_line(code, error)
    assert "calibrate: needs" in error
