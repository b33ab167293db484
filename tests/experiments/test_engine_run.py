"""`testbed run engine=gpu`, on a CPU: the config of a simulated run, carried out by tensors."""

import builtins
import json

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tiny_run import tiny_run

from experiments.commands.cli import dispatch
from kernels.launch.compile import KernelsUnavailable

MODEL = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "num_kv_heads": 2, "head_size": 8, "ffn_size": 16,
         "vocab_size": 61}  # fmt: skip
SMALL = [f"model.{name}={value}" for name, value in MODEL.items()]
BYTES = 2 * 2 * 16  # of a token's K and V
ON_CPU = "engine=gpu", "engine.device=cpu", "engine.dtype=float32", "engine.graphs=0", "engine.warm=[]"


def test_the_same_config_simulated_and_carried_out(tmp_path):
    pool = f"server.kv_memory_gib={{opt-13b: {74 * BYTES / 2**30}}}"
    simulated = tiny_run(tmp_path / "simulated", *SMALL, pool, "swap_space_gib=0")
    real = tiny_run(tmp_path / "real", *SMALL, pool, "swap_space_gib=0", *ON_CPU, "engine.debug=true")
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (real, simulated))
    assert ours["requests"] == theirs["requests"] == {"arrived": 7, "finished": 7, "rejected": 0}
    assert ours.keys() - theirs.keys() == {"engine"}
    assert (real / "iterations.csv").exists()


def test_what_the_engine_does_not_know_is_refused(tmp_path, capsys):
    tail = ("server=h200", "server.num_gpus=2", "~server.kv_memory_gib")
    for more, message in (((*ON_CPU, "+engine.x=1"), "engine.x is unknown"), ((*ON_CPU, *tail), "runs on one GPU")):
        folder = f"hydra.run.dir={tmp_path / 'x'}"
        assert dispatch(["run", *SMALL, *more, folder, "outputs=summary", "arrivals.duration_s=1"]) != 0
        assert message in capsys.readouterr().err


def test_without_torch_one_line_says_what_is_missing(tmp_path, monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *more):
        if name == "kernels.engine.config":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert dispatch(["run", "engine=gpu", f"hydra.run.dir={tmp_path / 'x'}"]) != 0
    assert "engine=gpu needs the package torch: install torch and CuPy" in capsys.readouterr().err


def test_without_a_gpu_one_line_says_so_and_nothing_is_left(tmp_path, monkeypatch, capsys):
    def none():
        raise KernelsUnavailable("the NVIDIA driver lists no GPU")

    monkeypatch.setattr("kernels.engine.config.require_gpu", none)
    assert dispatch(["run", "engine=gpu", "arrivals.duration_s=1", f"hydra.run.dir={tmp_path / 'x'}"]) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), list(tmp_path.iterdir())) == (1, [])
    assert "engine.device is cuda: the NVIDIA driver lists no GPU" in error
