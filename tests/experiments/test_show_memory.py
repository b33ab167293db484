"""`testbed show-memory`: the picture, the data of the page, and every kind of bad input."""

import json
import re
import shutil

import matplotlib.image
import numpy as np
import pytest
from tiny_run import tiny_run

FILES = ("memory_map.png", "memory_map.pdf", "memory_map.html")


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


def colors_of(path):
    image = matplotlib.image.imread(path)[..., :3]
    assert image.shape == (980, 1600, 3)
    packed = (image * 255).round().astype(int) @ [1 << 16, 1 << 8, 1]
    return {(color >> 16, color >> 8 & 255, color & 255) for color in np.unique(packed).tolist()}


def test_picture_shows_every_request_and_page_needs_no_network(show, plain):
    folder, output = show(plain)
    assert output.split() == [f"shown/{name}" for name in FILES]
    colors = colors_of(folder / "memory_map.png")
    palette = data_of(folder)["palette"]
    for color in palette[:7]:
        assert tuple(int(color[i : i + 2], 16) for i in (1, 3, 5)) in colors
    page = (folder / "memory_map.html").read_text()
    assert not re.search(r"https?:|src=|@import|url\(", page)
    assert "@@" not in page


def test_page_data_contain_every_state_of_a_short_run(show, plain):
    data = data_of(show(plain)[0])
    assert (data["block_size"], data["num_slots"], data["start"]) == (4, 72, 0)
    assert data["requests"]["2"] == [10, 14, 1]
    assert len(data["frames"]) == data["num_states"] > 20
    assert data["frames"][0] == {"t": 0, "step": 0, "seqs": [[0, 7, 0, [0, 4, 4, 4], []]]}


def test_output_is_deterministic_and_in_the_run_folder(testbed, show, tmp_path):
    folder = tiny_run(tmp_path / "a")
    assert testbed("show-memory", "a")[0] == 0
    again, _ = show(folder)
    for name in FILES:
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name


def test_reservations_show_unused_and_rounded_slots(show, tmp_path):
    folder, _ = show(tiny_run(tmp_path / "a", "policy=contiguous_pow2", blocks=24))
    assert {(0xD1, 0x49, 0x5B), (0x8B, 0x92, 0x9C)} <= colors_of(folder / "memory_map.png")
    assert data_of(folder)["frames"][0]["rounding"] == {"add": [87, 9], "drop": []}


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
        ((), "the following arguments are required: RUN"),
        (("nowhere",), "nowhere: not a run folder, it has no config.yaml"),
        (("lengths.csv",), "lengths.csv: not a run folder"),
        (("a", "--from", "2", "--to", "1"), "--from 2 --to 1: is an empty interval"),
        (("a", "--from", "-1"), "'-1' is not a number of seconds from 0 to 9,000,000"),
        (("a", "--from", "nan"), "'nan' is not a number of seconds"),
        (("a", "--to", "soon"), "'soon' is not a number of seconds"),
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


def test_run_without_requests_is_refused(testbed):
    testbed("run", "arrivals.rate=0.001", "arrivals.duration_s=1", "outputs=summary", "hydra.run.dir=a")
    code, _, error = testbed("show-memory", "a")
    assert (code, "there is nothing to draw" in error) == (2, True)
