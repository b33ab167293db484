"""Choices of a user's own: models and GPUs in a folder, classes as MODULE:CLASS or installed by
name.
"""

import importlib
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from refusals import refuses

from testbed.core.shapes import read_model
from testbed.experiments.cli.working_folder import prepare_working_folder
from testbed.experiments.real.importers.known_shapes import gpu_named
from testbed.experiments.runs.compose import composed, configured
from testbed.experiments.runs.own_options import stated
from testbed.experiments.runs.words import published_models
from testbed.run.identity import run_id

HERE = Path(__file__).parent
CONF = HERE.parents[1] / "experiments" / "conf"
GPU = """# A card of our own
_target_: testbed.core.specs.GpuSpec
name: card
memory_bytes: 20_000_000_000
memory_bandwidth: 1.0e12
fp16_flops: 1.0e14
host_bandwidth: 2.0e10
link_bandwidth: 2.0e10
"""
SLABS = "from example_policy import Slabs\n"
# The files of a plug-in, and whether a run depends on them, though only a function may import them
IMPORTED = {
    "mine/__init__.py": ("", True),
    "mine/policy.py": (
        f"{SLABS}from . import sizes\ndef late():\n    from .deep import thing\n",
        True,
    ),
    "mine/sizes.py": ("def late():\n    import beside, bought.policy\n", True),
    "mine/deep/__init__.py": ("from ..up import *\n", True),
    "mine/deep/thing.py": ("import sys; sys.exit('executed')\n", True),
    "mine/up.py": ("X = 1\n", True),
    "mine/unused.py": ("X = 1\n", False),
    "beside.py": ("import mine.policy\nimport not_there\n", True),
    "site-packages/bought/__init__.py": ("", False),
    "site-packages/bought/policy.py": (SLABS, False),
    "site-packages/bought/table.json": ("{}", False),
}


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def _mine(tmp_path):
    shape = {
        "_target_": "testbed.core.specs.ModelSpec",
        **asdict(read_model("llama-3-8b")),
        "tied_embedding": False,
    }
    write(
        tmp_path,
        "mine/model/small.yaml",
        yaml.safe_dump({**shape, "name": "small", "num_layers": 2}),
    )
    write(tmp_path, "mine/gpu/card.yaml", GPU)


@pytest.mark.usefixtures("_mine")
def test_user_model_runs_on_the_user_gpu_that_is_chosen(testbed, run):
    assert (
        run("--config-dir=mine model=small gpu=card arrivals.duration_s=5").config["server"]["name"]
        == "card-x1"
    )
    error = testbed.refused("run", "--config-dir=mine", "model=small")
    assert ": model=small: " in error


@pytest.mark.parametrize("path", sorted((CONF / "gpu").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_gpus_have_a_server_and_cited_numbers(path):
    gpu = yaml.safe_load(path.read_text())
    numbers = [
        line
        for line in path.read_text().splitlines()
        if line.startswith(("mem", "fp", "host", "link"))
    ]
    assert len(numbers) == 6 - ("fp8_flops" not in gpu)
    assert all("  # " in line for line in numbers)
    assert 16e9 < gpu["memory_bytes"] < 300e9
    assert float(gpu["link_bandwidth"]) >= float(gpu["host_bandwidth"])
    assert gpu_named(path.stem).name == path.stem


def test_a_gpu_by_its_name_is_a_server_of_one():
    server = configured(("gpu=l40s", "model=qwen2.5-0.5b")).server
    assert (server.gpu, server.num_gpus) == (gpu_named("l40s"), 1)


@pytest.mark.parametrize("name", ["a40", "h100-80gb", "rtx-4090"])
def test_a_server_of_the_name_of_a_gpu_has_one(name):
    server = configured((f"server={name}", "model=qwen2.5-0.5b")).server
    assert server == configured((f"gpu={name}", "model=qwen2.5-0.5b")).server


@pytest.fixture
def id_of(testbed, tmp_path, monkeypatch):
    """The id of a run with a class of a plug-in's, which `testbed run` has carried out once."""
    for name, (text, _) in IMPORTED.items():
        write(tmp_path, name, text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    importlib.invalidate_caches()
    words = (
        "policy=custom",
        "policy._target_=mine.policy.Slabs",
        "arrivals.duration_s=1",
        "outputs=summary",
    )
    testbed.done("run", *words)
    assert [path.name for path in tmp_path.glob("runs/*")] == [run_id(configured(words))]

    def call(target, folder=tmp_path):
        monkeypatch.chdir(folder)
        choice = ("policy=custom", f"policy._target_={target}")
        prepare_working_folder(choice)
        return run_id(configured(choice))

    return call


def test_run_id_depends_on_every_imported_plug_in_file(id_of, tmp_path):
    before = id_of("mine.policy.Slabs")
    for name, (text, counts) in IMPORTED.items():
        write(tmp_path, name, f"{text} " if name.endswith("json") else f"{text}# changed\n")
        after = id_of("mine.policy.Slabs")
        assert (after != before) == counts, name
        before = after
    for name in IMPORTED:
        write(tmp_path / "moved", name, (tmp_path / name).read_text())
    assert id_of("mine.policy.Slabs", tmp_path / "moved") == before, (
        "the folder of the files does not count"
    )


def test_run_id_depends_on_installed_plug_in_files(id_of, tmp_path):
    before = id_of("bought.policy.Slabs")
    write(tmp_path, "site-packages/bought/table.json", "[]")
    assert id_of("bought.policy.Slabs") != before


@pytest.fixture
def _installed(tmp_path, monkeypatch):
    """A package whose entry points are a policy, a scheduler, and three that cannot be loaded."""
    about = "Metadata-Version: 2.1\nName: my-package\nVersion: 1\n"
    points = "[testbed.policy]\nslabs = example_policy:Slabs\nbroken = no_such_module:Policy\n"
    points += "gone = example_policy:Nothing\nleaves = leaves_listed:Policy\n"
    points += "[testbed.scheduler]\nchunks = testbed.sched.chunked:ChunkedPrefill\n"
    write(tmp_path, "installed/my_package-1.dist-info/METADATA", about)
    write(tmp_path, "installed/my_package-1.dist-info/entry_points.txt", points)
    write(tmp_path, "installed/leaves_listed.py", "import sys; sys.exit(0)")
    monkeypatch.syspath_prepend(tmp_path / "installed")


@pytest.mark.usefixtures("_installed")
def test_installed_policy_and_scheduler_can_be_chosen_by_name(testbed, run):
    line = (
        "policy=slabs +policy.slab_size=32 scheduler=chunks scheduler.max_num_seqs=7 "
        "arrivals.duration_s=5"
    )
    config = run(line).config
    assert config["policy"]["_target_"] == "example_policy.Slabs"
    assert "did you mean slabs?" in testbed("run", "policy=slab")[2]
    assert (config["scheduler"]["max_num_batched_tokens"], config["scheduler"]["max_num_seqs"]) == (
        2560,
        7,
    )


@pytest.mark.usefixtures("_installed")
def test_list_tolerates_broken_plug_ins_and_files(testbed, tmp_path):
    write(tmp_path, "mine/policy/odd.yaml", "# An odd one\n_target_: [\n")
    output = testbed.done("list", "policy", "--config-dir", "mine")
    reported = " ".join(re.sub("[│─┌┐└┘├┤┬┴┼]", " ", output).split())
    assert reported.count("cannot be loaded") == 3
    assert "(package my-package)" in reported
    assert "An odd one" in reported
    assert "example_policy.Slabs" in reported
    assert "testbed.memory.paged.paged.Paged" in reported


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("Qwen/Qwen3-32B", ("model=qwen3-32b",)),
        (
            "Qwen/Qwen3-32B-FP8",
            ("model=qwen3-32b", "++model.weight_bits=8.001953125", "++model.fp8_products=true"),
        ),
        ("Qwen/Qwen3-32B-AWQ", ("model=qwen3-32b", "++model.weight_bits=4.15625")),
        ("moonshotai/Kimi-K2-Instruct-0905", ("model=kimi-k2", "model.max_len=262144")),
    ],
)
def test_a_model_by_its_published_name_is_the_same_run(name, by_hand):
    assert configured((f"model={name}", "server=h200")) == configured((*by_hand, "server=h200"))


def test_a_published_name_has_no_shape():
    refuses("model=Qwen/Qwen3-33B: ", published_models, "model=Qwen/Qwen3-33B")


@pytest.mark.parametrize("before", ["", "\n", "\n  \n"])
@pytest.mark.parametrize("mark", ["# @package", "#@package", "#  @package"])
def test_a_file_names_its_package_in_every_spelling_of_hydra(tmp_path, before, mark):
    path = write(tmp_path, "figure/mine.yaml", f"{before}{mark} _global_\nseed: 7\n")
    assert stated(path, 0) == {"@package": "_global_", "seed": 7}


def test_a_file_has_its_values_in_the_package_that_it_names(tmp_path):
    write(tmp_path, "figure/mine.yaml", "# @package _global_\nseed: 7\n")
    assert composed("run", (f"--config-dir={tmp_path}", "+figure=mine")).seed == 7
