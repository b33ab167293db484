"""`testbed report` and `testbed derive-profile`."""

import json
import re


def test_a_page_of_a_reproduction_is_self_contained(testbed, tmp_path):
    assert testbed("reproduce", "table1", "--out", "out", "--jobs", "1")[0] == 0
    assert testbed("run", "arrivals.duration_s=10", "cost=profile", "cost.path=h200-opt-13b-tp1", "server=h200",
                   "hydra.run.dir=run")[0] == 0  # fmt: skip
    code, output, _ = testbed("report", "out", "run", "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (code, output) == (0, "report: page.html\n")
    assert "kv_slots" in page
    assert "NVIDIA H200" in page
    assert "_target_: testbed.cost.profile.ProfileCost" in page
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r'(?:src|href)="(?!data:)', page)


def test_a_folder_without_results_is_named(testbed, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, error = testbed("report", "empty")
    assert code == 2
    assert error.startswith("testbed report: error: empty: holds neither")


def test_a_derived_profile_says_so_and_prices_a_run(testbed, tmp_path):
    code, _, _ = testbed("derive-profile", "--from", "h200-opt-13b-tp1", "--to", "a100-40gb", "--out", "a100.json")
    assert code == 0
    assert json.loads((tmp_path / "a100.json").read_text())["fingerprint"]["source"] == "derived"
    run = ("run", "cost=profile", "cost.path=a100.json", "arrivals.duration_s=10", "outputs=summary")
    assert testbed(*run, "hydra.run.dir=run")[0] == 0
    code, _, error = testbed(*run, "model=opt-66b")
    assert code == 2
    assert "the profile is of opt-13b" in error
