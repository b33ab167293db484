"""Pool, name and prices are those of the server's own GPU, or the run is refused."""

import pytest
import yaml

OPTIONS = ("arrivals.duration_s=5", "outputs=summary", "hydra.run.dir=out")
ON_H200 = ("gpu@server.gpu=h200",)
PROFILE = ("cost=profile", "cost.path=h200-opt-13b-tp1")
REFUSED = {
    "another GPU": (ON_H200, ["1 a100-40gb", "1 h200", "~server.kv_memory_gib", "server.kv_memory_of.gpu=h200"]),
    "more GPUs": (("server.num_gpus=2",), ["opt-13b", "2 a100-40gb", "server.kv_memory_of.num_gpus=2"]),
    "prices of another GPU": (PROFILE, ["NVIDIA H200", "a100-40gb (NVIDIA A100-SXM4-40GB)", "testbed derive-profile"]),
    "carried from another GPU": (("cost=sosp23", "gpu@cost.source=h100-80gb", "cost.path=h200-opt-13b-tp1"),
                                 ["NVIDIA H200", "cost.source", "h100-80gb"]),
}  # fmt: skip
RUNS = {
    "the pool computed": ((*ON_H200, "~server.kv_memory_gib", *PROFILE), "h200-x1"),
    "the pool kept": ((*ON_H200, "server.kv_memory_of.gpu=h200"), "h200-x1"),
    "a pool of one's own": (("server.kv_memory_gib={opt-13b: 6}",), "a100-40gb-x1"),
    "no pool given": ((*ON_H200, "model=llama-3-8b", "server=a100-40gb-x1"), "h200-x1"),
    "prices carried over": (("cost=sosp23",), "a100-40gb-x1"),
    "prices of this GPU": (("server=h200", *PROFILE), "h200-x1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mixture_is_refused(testbed, tmp_path, case):
    overrides, culprits = REFUSED[case]
    code, _, error = testbed("run", *overrides, *OPTIONS)
    assert (code, error.count("\n")) == (2, 1)
    assert all(culprit in error for culprit in culprits), error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("case", RUNS)
def test_one_machine_runs_under_its_name(testbed, tmp_path, case):
    overrides, name = RUNS[case]
    code, _, error = testbed("run", *overrides, *OPTIONS)
    assert (code, error) == (0, "")
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["server"]["name"] == name


def test_a_profile_is_carried_from_the_gpu_that_it_is_of(testbed):
    code, _, error = testbed(
        "derive-profile", "--from", "h200-opt-13b-tp1", "--to", "a100-40gb", "--source-gpu", "h100-80gb"
    )
    assert (code, error.count("\n")) == (2, 1)
    assert "NVIDIA H200" in error
