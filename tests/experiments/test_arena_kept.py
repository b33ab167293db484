"""The kept result of the arena: its suite is this version's, and ARENA has its standings."""

import pytest

from testbed.experiments.arena.arena_cell import Row
from testbed.experiments.arena.results import KEPT, located, read
from testbed.experiments.arena.standings import standings
from testbed.experiments.arena.suites import suite_of


@pytest.fixture(scope="module")
def kept():
    return read(KEPT / "vllm-v1.json.gz")


def test_a_kept_result_is_found_by_its_name_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = KEPT.joinpath("vllm-v1.json.gz").relative_to(KEPT)
    assert located(name) == KEPT / name
    (tmp_path / name).touch()
    assert located(name) == name
    assert located(tmp_path / "none.json") == tmp_path / "none.json"


def test_it_is_of_the_quick_suite(kept):
    assert kept["about"]["suite_hash"] == suite_of("quick").identity
    num_cells = {name: 0 for name in kept["entrants"]}
    for row in kept["rows"]:
        num_cells[row["entrant"]] += 1
    del num_cells["contiguous_max"]  # samples do not fit
    assert len(set(num_cells.values())) == 1


def test_arena_has_its_standings(kept):
    rows = {}
    for row in kept["rows"]:
        values = dict(row)
        name, place = values.pop("entrant"), (values.pop("condition"), values.pop("seed"))
        rows.setdefault(name, {})[place] = Row(**values)
    text = KEPT.parents[1].joinpath("ARENA.md").read_text().split("## The same orders under")[0]
    lines = [line.split("|")[1:] for line in text.splitlines() if line.startswith("| ")]
    for standing in standings(rows, {"vllm_offloading": "DRAM tier"}):
        if standing.rank is None:
            continue
        (cells,) = [cells for cells in lines if standing.name in cells[1].replace(",", "").split()]
        assert cells[0].split(",")[0].strip() == str(standing.rank)
        assert str(standing.job) in cells[2]
        assert f"{100 * standing.hits:.1f}" in cells[3]
