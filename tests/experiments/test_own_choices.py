"""Choices of a user's own: folders, GPUs, plug-ins by name, classes as MODULE:CLASS, a model without a server."""

import importlib.metadata
from types import SimpleNamespace

import pytest
import yaml
from omegaconf import OmegaConf

from experiments.commands.run_help import values
from experiments.runs.known_choices import GROUPS, files_of, names_of
from experiments.runs.lab import composed
from experiments.runs.machine import make_machine

SHORT = ("arrivals.duration_s=5", "outputs=summary", "hydra.run.dir=out")
MODEL = """_target_: testbed.core.specs.ModelSpec
name: mine
num_layers: 2
hidden_size: 512
num_heads: 8
num_kv_heads: 8
head_size: 64
ffn_size: 2048
ffn_matrices: 2
vocab_size: 1000
max_len: 2048
"""
GPU = """# A card of our own
_target_: testbed.core.specs.GpuSpec
name: card
memory_bytes: 20_000_000_000
memory_bandwidth: 1.0e12
fp16_flops: 1.0e14
host_bandwidth: 2.0e10
link_bandwidth: 2.0e10
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in (
        ("model/mine", MODEL),
        ("model/huge", MODEL.replace("layers: 2", "layers: 30000")),
        ("gpu/card", GPU),
    ):
        path = tmp_path / "mine" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("name: mine", f"name: {path.stem}") if "model" in name else text)
    return "--config-dir=mine"


def config(tmp_path):
    return yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())


def test_a_model_without_a_server_gets_one_and_it_is_said(testbed, tmp_path, folder):
    code, _, error = testbed("run", folder, "model=mine", *SHORT)
    assert code == 0
    assert error.splitlines() == [
        "testbed: note: mine has no server of its own (server/of-mine.yaml), so it runs on 1 x h200; "
        "server=... or gpu=... chooses another"
    ]
    assert config(tmp_path)["server"]["num_gpus"] == 1
    _, _, error = testbed("run", folder, "model=huge", *SHORT)
    assert "runs on 4 x h200" in error
    assert config(tmp_path)["server"]["num_gpus"] == 4


def test_a_gpu_of_ones_own_and_a_gpu_beside_a_server(testbed, tmp_path, folder):
    code, _, error = testbed("run", folder, "model=mine", "gpu=card", *SHORT)
    assert (code, error) == (0, "")
    assert config(tmp_path)["server"]["name"] == "card-x1"
    assert testbed("run", "gpu=l4", "server=h200", "server.num_gpus=2", *SHORT)[0] == 0
    assert config(tmp_path)["server"]["name"] == "l4-x2"


@pytest.mark.parametrize("name", names_of("gpu"))
def test_every_gpu_has_a_server_and_a_source_beside_each_number(name):
    _, server = make_machine(composed("run", (f"gpu={name}", "model=qwen2.5-0.5b")))
    assert server.gpu.name == name
    assert 20e9 < server.gpu.memory_bytes < 300e9
    assert server.gpu.link_bandwidth >= server.gpu.host_bandwidth
    assert name in names_of("server") or f"{name}-x1" in names_of("server")
    numbers = [
        line
        for line in files_of("gpu")[name].read_text().splitlines()
        if line.startswith(("mem", "fp", "host", "link"))
    ]
    assert len(numbers) == 5
    assert all("  # " in line for line in numbers)


@pytest.mark.parametrize(
    ("group", "name", "nearest"),
    [
        ("policy", "pagd", "paged"),
        ("trace", "share_gpt", "sharegpt"),
        ("gpu", "a100", "a100-80gb"),
        ("model", "opt13b", "opt-13b"),
    ],
)
def test_did_you_mean(testbed, group, name, nearest):
    code, _, error = testbed("run", f"{group}={name}")
    assert code == 2
    assert f"no {group}/{name}; did you mean {nearest}" in error or "a100" in nearest
    assert error.count("\n") == 1


def test_commands_and_groups_are_guessed_too(testbed):
    assert "did you mean reproduce?" in testbed("reprodce")[2]
    assert "did you mean eviction?" in testbed("list", "evictions")[2]


@pytest.mark.parametrize("way", ["policy=example_policy:Slabs", "policy=custom policy._target_=example_policy:Slabs"])
def test_a_class_may_have_a_colon(testbed, tmp_path, way):
    assert testbed("run", *way.split(), "+policy.slab_size=32", *SHORT)[0] == 0
    assert config(tmp_path)["policy"] == {"_target_": "example_policy.Slabs", "slab_size": 32}


@pytest.fixture
def installed(monkeypatch):
    """Pretend that packages declare these entry points."""

    def declare(*points):
        found = [importlib.metadata.EntryPoint(*point) for point in points]
        monkeypatch.setattr(
            "experiments.runs.known_choices.entry_points", lambda group: [one for one in found if one.group == group]
        )

    return declare


def test_a_plug_in_is_chosen_by_its_name(testbed, tmp_path, installed):
    installed(("slabs", "example_policy:Slabs", "testbed.policy"))
    assert testbed("run", "policy=slabs", "+policy.slab_size=32", *SHORT)[0] == 0
    assert config(tmp_path)["policy"]["_target_"] == "example_policy.Slabs"
    assert "did you mean slabs?" in testbed("run", "policy=slab")[2]


def test_a_plug_in_of_a_scheduler_gets_the_limits(testbed, tmp_path, installed):
    installed(("chunks", "testbed.sched.chunked:ChunkedPrefill", "testbed.scheduler"))
    assert testbed("run", "scheduler=chunks", "scheduler.max_num_seqs=7", *SHORT)[0] == 0
    assert config(tmp_path)["scheduler"]["max_num_batched_tokens"] == 2560


def test_a_list_survives_broken_plug_ins_and_mistakes_in_files(testbed, tmp_path, installed):
    installed(
        ("broken", "no_such_module:Policy", "testbed.policy"),
        ("gone", "example_policy:Nothing", "testbed.policy"),
        ("slabs", "example_policy:Slabs", "testbed.policy"),
    )
    (tmp_path / "mine" / "policy").mkdir(parents=True)
    (tmp_path / "mine" / "policy" / "odd.yaml").write_text("# An odd one\n_target_: [\n")
    code, output, _ = testbed("list", "policy", "--config-dir", "mine")
    assert code == 0
    assert output.count("cannot be loaded") == 2
    assert "An odd one" in output
    assert "example_policy.Slabs" in output


def test_a_list_names_the_package_of_a_broken_plug_in(testbed, monkeypatch):
    dist = SimpleNamespace(name="my-package")
    point = SimpleNamespace(name="foo", value="no_such_module:Order", dist=dist, load=lambda: 1 / 0)
    monkeypatch.setattr("experiments.runs.known_choices.entry_points", lambda group: [point])
    code, output, _ = testbed("list", "eviction")
    assert code == 0
    assert "cannot be loaded: ZeroDivisionError: division by zero (package my-package)" in output


def test_list_names_every_group(testbed):
    output = testbed("list")[1]
    assert all(f"│ {group}" in output for group in GROUPS)
    assert "s3_fifo" in output
    assert "rtx-4090" in output


def keys(node, prefix=""):
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{key}.")


@pytest.mark.parametrize(
    "chosen",
    [{}, {"policy": "prefix_caching_v1", "scheduler": "vllm_v1_async", "model": "llama-3-70b"}, {"gpu": "l4"},
     {"trace": "csv", "cost": "profile", "server": "h200"}],
)  # fmt: skip
def test_help_shows_what_hydra_composes(chosen):
    shown = yaml.safe_load("\n".join(values(chosen, [])))
    whole = composed("run", tuple(f"{group}={name}" for group, name in chosen.items()))
    hydras = OmegaConf.to_container(whole)
    hydras.pop("hydra", None)
    assert set(keys(shown)) == set(keys(hydras))


def test_version(testbed):
    code, output, _ = testbed("--version")
    assert code == 0
    assert output.startswith("testbed ")
