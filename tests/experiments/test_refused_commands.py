"""Wrong arguments of the other commands: exit code 2 and one line that names the argument, the
file or the class.
"""

import sys

import pytest
from refusals import check_words

ARGUMENTS = [
    pytest.param("reproduce table1 --out lengths.csv", ("lengths.csv",)),
    pytest.param("bench --nope", ("--nope",)),
    pytest.param("check no_module:Policy", ("no_module",)),
    pytest.param("check not_a_policy:Policy", ("no MemoryPolicy",)),
    pytest.param("check own_parts:NeedsALargePool", ("too small",)),
    pytest.param("check example_policy:Slabs no_such=1", ("no_such",)),
    pytest.param("check example_policy:Slabs --slots 0", ("--slots",)),
    pytest.param("compare a=nowhere", ("nowhere: no such folder",)),
    pytest.param("compare mine", ("mine: has no summary.json",)),
    pytest.param("show timeline nowhere", ("nowhere", "not a run folder")),
    pytest.param("show timeline mine --from x", ("--from",)),
    pytest.param("capacity paged", ("paged",)),
    pytest.param("capacity slo.ttft_s=-1", ("slo.ttft_s=-1",)),
    pytest.param("capacity slo.ttft_s=1 --share 2", ("share", "2")),
    pytest.param("capacity slo.ttft_s=1 --low 3", ("low", "3")),
    pytest.param(
        "capacity slo.ttft_s=1 stop_at_latency=0.03",
        ("stop_at_latency=0.03: a run that stops before its end",),
    ),
    pytest.param(
        "capacity slo.ttft_s=1 window_s=[0,5]",
        ("window_s=[0.0, 5.0]: a run that stops before its end",),
    ),
    pytest.param("capacity slo.ttft_s=1 arrivals.rat=2", ("did you mean arrivals.rate?",)),
    pytest.param("capacity slo.ttft_s=1 --runs lengths.csv", ("lengths.csv",)),
    pytest.param("import model lengths.csv", ("lengths.csv: not a JSON file",)),
    pytest.param("validate log.csv --within nan", ("nan", "must be a number above 0")),
    pytest.param(
        "validate log.csv trace=alpaca arrivals.rate=5",
        ("trace=alpaca: the log has every request",),
    ),
    pytest.param("validate log.csv window_s=[0,5]", ("window_s=[0,5]: the log has every request",)),
    pytest.param(
        "calibrate fit software log.csv ++workload.num_seqs=2",
        ("workload.num_seqs=2: the log has every request",),
    ),
    pytest.param("calibrate fit software nowhere.csv", ("nowhere.csv",)),
    pytest.param("gpu calibrate --model opt-13b:3 --out x", ("does not divide",)),
    pytest.param("gpu calibrate --model opt-13b llama-13b --out nowhere", ("need a folder",)),
]


@pytest.mark.parametrize(("line", "words"), ARGUMENTS)
def test_wrong_arguments_are_refused_by_name(refused, line, words):
    check_words(words, refused(line))


def test_calibrate_names_missing_packages(testbed, monkeypatch):
    for name in ("testbed.kernels.measure.profile_sections", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    error = testbed.refused("gpu", "calibrate", "--model", "opt-13b", "--out", "x.json")
    check_words(("calibrate: needs",), error)
