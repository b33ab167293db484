"""The descriptions in folders of a vLLM's sweeps are in the profile, and must agree."""

import json

import planted_vllm as planted
import pytest

from testbed.core.errors import InputError
from testbed.core.shapes import read_model
from testbed.cost.sections import read_profile
from testbed.experiments.real.vllm_engine.calibrate_vllm import profile_of_sweeps

H100 = "NVIDIA H100 80GB HBM3"
ABOUT = {"vllm": "0.20.2", "torch": "2.11", "device": H100, "host": "a host"}
FACTS = {"async_scheduling": True, "tensor_parallel_size": 1, "graph_sizes": planted.SIZES}


def sweeps_in(folder, facts=FACTS, about=ABOUT):
    """A folder of sweeps with these files."""
    folder.mkdir()
    planted.sweeps().write(folder)
    (folder / "facts.json").write_text(json.dumps(facts))
    (folder / "machine.json").write_text(json.dumps(about))
    return folder


def fitted(*folders):
    shipped = read_profile("vllm-0.20/h100-llama-3.1-8b-tp1")
    return profile_of_sweeps(folders, read_model("llama-3.1-8b"), shipped)


def test_a_profile_names_the_machine_and_the_release_that_were_swept(tmp_path):
    profile = fitted(sweeps_in(tmp_path / "a", FACTS | {"tensor_parallel_size": 2}))
    assert profile["num_gpus"] == 2
    about = profile["fingerprint"]
    assert (about["system"], about["device"], about["host"]) == ("vLLM 0.20.2", H100, "a host")


def test_files_beside_the_folders_are_read_too(tmp_path):
    folder = sweeps_in(tmp_path / "a")
    for name in ("facts.json", "machine.json"):
        (folder / name).rename(tmp_path / name)
    assert fitted(folder)["fingerprint"]["host"] == "a host"


@pytest.mark.parametrize(
    ("facts", "about", "cause"),
    [
        pytest.param({"graph_sizes": [1, 2]}, {}, "graph_sizes is", id="other graphs"),
        pytest.param({}, {"host": "another"}, "host is another", id="another host"),
        pytest.param({"async_scheduling": False}, {}, "async", id="not asynchronous"),
    ],
)
def test_folders_that_disagree_are_refused(tmp_path, facts, about, cause):
    folders = sweeps_in(tmp_path / "a"), sweeps_in(tmp_path / "b", FACTS | facts, ABOUT | about)
    with pytest.raises(InputError, match=cause):
        fitted(*folders)


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_a_file_that_is_no_object_is_refused_by_name(tmp_path, text):
    folder = sweeps_in(tmp_path / "a")
    (folder / "machine.json").write_text(text)
    with pytest.raises(InputError, match=r"machine\.json"):
        fitted(folder)


def test_files_must_name_the_device(tmp_path):
    with pytest.raises(InputError, match=r"machine\.json in it or beside it has device"):
        fitted(sweeps_in(tmp_path / "a", about={"vllm": "0.20.2"}))
