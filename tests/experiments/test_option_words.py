"""Words of the command line that stand for more than one option, and those that cannot be read."""

import pytest
from refusals import check_words

from testbed.experiments.runs.compose import configured

SHORT = "arrivals.duration_s=1"
LEAKY = "from example_policy import Slabs\n\n\nclass Mine(Slabs):\n    pass\n"


@pytest.fixture
def _mine(tmp_path):
    (tmp_path / "mine.py").write_text(LEAKY)


@pytest.mark.parametrize(
    ("line", "gpu", "num_gpus"),
    [
        pytest.param("gpu=l4 model=qwen2.5-0.5b", "l4", 1, id="a GPU alone is a server of one"),
        pytest.param("gpu=l40s server=h200 server.num_gpus=2", "l40s", 2, id="a GPU in a server"),
    ],
)
def test_gpu_is_chosen_by_its_name(run, line, gpu, num_gpus):
    server = run(f"{line} {SHORT}").config["server"]
    assert (server["gpu"]["name"], server["num_gpus"]) == (gpu, num_gpus)


@pytest.mark.usefixtures("_mine")
def test_a_class_of_ones_own_is_chosen_as_module_and_class(run):
    assert run(f"policy=mine:Mine {SHORT}").config["policy"]["_target_"] == "mine.Mine"


def test_a_mix_of_shares_needs_no_quotes(run):
    config = run(f"workload.mix=1:0.25,beam2:0.75 arrivals.rate=9 {SHORT}").config
    assert config["workload"]["mix"] == "1:0.25,beam2:0.75"


def test_faults_with_commas_need_no_quotes():
    faults = "engine 0 at 1 s, back at 2 s; engine 1 at 3 s"
    for text in (faults, faults.replace(", back at 2 s", "")):
        words = [f"faults={text}", "replicas=2", SHORT]
        assert configured(words).faults == text


def test_an_empty_table_removes_the_measured_pools(run):
    assert not run(f"server.kv_memory_gib={{}} {SHORT}").config["server"]["kv_memory_gib"]


def test_the_last_value_of_an_option_counts(run):
    assert run(f"seed=1 seed=2 {SHORT}").config["seed"] == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("policy=", ("policy=", "testbed list policy"), id="no value"),
        pytest.param("policy=null", ("policy=null", "testbed list policy"), id="null"),
        pytest.param("gpu=l5", ("l5", "choose from", "l40s"), id="a GPU that is none"),
        pytest.param("policy=pagd", ("pagd", "did you mean paged?"), id="a mistyped policy"),
        pytest.param("policy=xyz", ("xyz", "choose from", "paged"), id="an unknown policy"),
        pytest.param(
            "policy._target_=mine.Mine",
            ("policy._target_=mine.Mine", "set policy=custom"),
            id="a class under another name",
        ),
        pytest.param(
            "scheduler=mixed scheduler._target_=x.Y",
            ("scheduler._target_=x.Y", "set scheduler=custom"),
            id="a scheduler under another name",
        ),
        pytest.param("--config-dir=nowhere", ("nowhere", "no such folder"), id="no such folder"),
        pytest.param("--config-dir=mine.py", ("mine.py", "no such folder"), id="a file"),
    ],
)
@pytest.mark.usefixtures("_mine")
def test_words_that_select_no_option_are_refused(testbed, line, words):
    check_words(words, testbed.refused("run", *line.split(), SHORT, "outputs=summary"))


@pytest.mark.parametrize("name", ["model/opt-13b", "policy/paged"])
def test_a_file_with_the_name_of_one_that_ships_is_refused(testbed, tmp_path, name):
    path = tmp_path / "mine" / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("")
    error = testbed.refused("run", "--config-dir=mine", SHORT, "outputs=summary")
    check_words((f"{name}.yaml", "has the name of one that ships", "give it another name"), error)
