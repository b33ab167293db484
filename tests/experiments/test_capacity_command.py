"""`testbed capacity`: every rate as it is tried, then the answer; runs are kept and not run again."""

import re

import pytest

WORDS = ("policy=contiguous_max", "slo.ttft_s=0.5", "arrivals.duration_s=60", "--share", "0.9", "--precision", "0.2")


def test_it_finds_the_rate_and_keeps_its_runs(testbed, tmp_path):
    code, output, error = testbed("capacity", *WORDS)
    assert code == 0
    rate = float(
        re.match(r"capacity: ([\d.]+) req/s keep 90% inside; at [\d.]+ req/s goodput is [\d.]+ req/s", output)[1]
    )
    tried = {float(r): verdict for r, verdict in re.findall(r"([\d.]+) req/s: +[\d.]+% inside, (\w+) 90%", error)}
    assert max(r for r, verdict in tried.items() if verdict == "keeps") < rate
    assert min(r for r, verdict in tried.items() if verdict == "misses") > rate
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}
    assert len(runs) == len(tried)
    assert testbed("capacity", *WORDS) == (code, output, error)
    assert runs == {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("policy=paged", "arrivals.duration_s=5"), "no objective is given"),
        (("slo.ttft_s=-1",), "slo.ttft_s is -1"),
        (("slo.ttft_s=1", "--share", "0"), "share is 0"),
        (("slo.ttft_s=1", "--share", "half"), "half"),
        (("slo.ttft_s=1", "polcy=paged"), "polcy"),
        ((), "KEY=VALUE"),
    ],
    ids=str,
)
def test_wrong_words_are_one_line(testbed, tmp_path, words, said):
    code, _, error = testbed("capacity", *words)
    assert (code, error.count("\n")) == (2, 1)
    assert said in error
    assert not list(tmp_path.glob("runs/*/*"))
