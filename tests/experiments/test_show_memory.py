"""`testbed show-memory`: the data of the page, and every kind of bad input."""

import json
import re
import shutil

import pytest
from tiny_run import tiny_run


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run folder; nothing is written into it."""
    return tiny_run(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture
def show(testbed, tmp_path):
    """Call show-memory on a folder with options; the folder that it wrote to, and what it said."""

    def call(folder, *options):
        code, output, error = testbed("show-memory", str(folder), "--out", "shown", *options)
        assert (code, error) == (0, "")
        return tmp_path / "shown", output

    return call


def data_of(folder):
    text = (folder / "memory_map.html").read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


def test_page_data_contain_every_state_of_a_short_run(show, plain):
    folder, output = show(plain)
    assert output.split() == ["shown/memory_map.html"]
    assert not re.search(r"https?:|src=|@import|url\(", (folder / "memory_map.html").read_text())
    data = data_of(folder)
    assert (data["block_size"], data["pools"], data["start"]) == (4, [["device", 72]], 0)
    assert data["requests"]["2"] == [10, 14, 1]
    assert len(data["frames"]) == data["num_states"] > 20
    assert data["frames"][0] == {"t": 0, "step": 0, "seqs": [[0, 7, 0, [0, 4, 4, 4], [], 0]]}


def test_a_window_starts_with_the_whole_state(show, plain):
    data = data_of(show(plain, "--from", "0.3", "--to", "0.5")[0])
    assert (data["start"], data["end"], data["frames"][0]["t"]) == (0.3, 0.5, 0.3)
    assert 3 < len(data["frames"]) < 15
    assert all(entry[2] == 0 for entry in data["frames"][0]["seqs"])


def test_thinning_of_many_states_is_reported(testbed, tmp_path):
    options = ("arrivals.duration_s=60", "arrivals.rate=0.5", "outputs=summary")
    assert testbed("run", *options, "hydra.run.dir=a")[0] == 0
    code, output, error = testbed("show-memory", "a")
    assert (code, error) == (0, "")
    assert re.search(r"([\d,]+) of ([\d,]+) states are drawn", output)
    assert 750 <= len(data_of(tmp_path / "a")["frames"]) <= 1500
    assert (tmp_path / "a" / "memory_map.html").stat().st_size < 3_500_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere: not a run folder, it has no config.yaml"),
        (("a", "--from", "2", "--to", "1"), "--from 2 --to 1: is an empty interval"),
        (("a", "--from", "-1"), "'-1' is not a number of seconds from 0 to 9,000,000"),
        (("a", "--to", "inf"), "'inf' is not a number of seconds"),
        (("a", "--from", "99"), "--from 99: the run ends at "),
        (("broken",), "broken/config.yaml: cannot be read: "),
        (("other",), "other/config.yaml: not the config of a run: "),
        (("a", "--out", "lengths.csv"), "lengths.csv: File exists"),
    ],
)
def test_bad_input_is_refused_in_one_line(testbed, plain, tmp_path, arguments, message):
    (tmp_path / "lengths.csv").write_text("not a folder")
    shutil.copytree(plain, tmp_path / "a")
    for name, text in (("broken", "a: [1"), ("other", "model: 1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    code, output, error = testbed("show-memory", *arguments)
    assert (code, output) == (2, "")
    assert error.count("\n") == 1
    assert message in error


def test_changed_replay_of_a_run_is_reported(show, testbed, tmp_path):
    folder = tiny_run(tmp_path / "a")
    lengths = tmp_path / "a.csv"
    lengths.write_text(lengths.read_text().replace("9,12,", "9,20,"))
    assert "and would now end at " in show(folder)[1]
    assert "would now" not in show(folder, "--to", "0.5")[1]
    code, output, _ = testbed("timeline", str(folder))
    assert code == 0
    assert "and would now end at " in output


def test_plug_in_without_blocks_is_drawn(show, testbed, tmp_path):
    options = (
        "policy=custom",
        "policy._target_=example_policy.Slabs",
        "+policy.slab_size=40",
        "arrivals.duration_s=10",
    )
    assert testbed("run", *options, "outputs=summary", "hydra.run.dir=a")[::2] == (0, "")
    data = data_of(show(tmp_path / "a", "--to", "5")[0])
    assert (data["block_size"], data["end"]) == (16, 5)
    assert {entry[3][1] for frame in data["frames"] for entry in frame["seqs"] if len(entry) > 1 and entry[3]} == {40}
