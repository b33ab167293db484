"""`testbed run engine=gpu`, on a CPU: the config of a simulated run, carried out by tensors."""

import builtins
import json
from io import StringIO

import pytest
from rich.console import Console

pytest.importorskip("torch", reason="torch is not installed")

from tiny_engine import KV_BYTES, ON_CPU, SMALL
from tiny_run import tiny_run

from testbed.experiments.cli.main import main
from testbed.experiments.look.compare.named_runs import read_runs
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.summary_table import summary_table
from testbed.kernels.engine import device_memory
from testbed.kernels.launch.compile import KernelsUnavailable
from testbed.run.build import build


def test_engine_and_simulator_run_the_same_config(tmp_path):
    pool = f"++server.kv_memory_gib={{small: {74 * KV_BYTES / 2**30}}}"
    simulated = tiny_run(tmp_path / "simulated", *SMALL, pool, "swap_space_gib=0")
    real = tiny_run(
        tmp_path / "real", *SMALL, pool, "swap_space_gib=0", *ON_CPU, "engine.debug=true"
    )
    ours, theirs = (
        json.loads((folder / "summary.json").read_text()) for folder in (real, simulated)
    )
    assert ours["requests"] == theirs["requests"] == {"arrived": 7, "finished": 7, "rejected": 0}
    assert ours.keys() - theirs.keys() == {"engine"}
    assert (real / "iterations.csv").exists()
    assert not (real / "charts.png").exists()  # only with outputs=full
    shown = Console(file=StringIO(), width=200)
    shown.print(summary_table(ours))
    text = shown.file.getvalue()
    assert "│ time " in text
    assert "simulated" not in text
    assert "costs" not in text
    assert "costs" not in read_runs([str(real)])[0].parts


def test_engine_and_simulator_are_built_alike(tmp_path):
    """vLLM's null block, prompts for a clairvoyant order (it raises without them), the head of the
    summary.
    """
    lines = [f"64,4,{i},1 2 3 {9 + i}" for i in range(3)]
    (tmp_path / "t.csv").write_text(
        "\n".join(["input_tokens,output_tokens,arrival_s,prompt_ids", *lines, ""])
    )
    lengths = f"trace=csv trace.path={tmp_path / 't.csv'}"
    trace = f"{lengths} arrivals=replay eviction@policy.eviction=belady".split()
    overrides = [
        *SMALL,
        *["+system=vllm-v1", "server.num_blocks=300", "~server.kv_memory_gib", "swap_space_gib=0"],
        *trace,
    ]
    heads, pools = [], []
    for name, more in (("simulated", ()), ("real", ON_CPU)):
        setup = build(configured([*overrides, *more]))
        pools.append(setup.pool)
        folder = tmp_path / name
        assert main(["run", *overrides, *more, f"hydra.run.dir={folder}"]) == 0
        heads.append(json.loads((folder / "summary.json").read_text())["run"])
    assert pools[0] == pools[1]
    assert pools[0].num_slots == 299 * 16
    assert {**heads[0], "id": None} == {**heads[1], "id": None}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "server=h200 server.num_gpus=2 ~server.kv_memory_gib server.num_blocks=300 "
            "model.ffn_size=63",
            "a feed-forward layer of 63 values must be divisible by it",
        ),
        (
            "beams=recorded beams.path=beams.csv workload.beam=true workload.num_seqs=2",
            "follow the model's scores",
        ),
    ],
)
def test_config_that_the_engine_cannot_serve_is_refused(testbed, tmp_path, options, words):
    (tmp_path / "beams.csv").write_text("request,step,parent,child\n0,2,0,1\n")
    code, _, error = testbed("run", *SMALL, *ON_CPU, *options.split(), "arrivals.duration_s=1")
    assert (code, words in error) == (2, True)


def test_pools_beyond_the_memory_are_refused_before_they_are_taken(tmp_path, monkeypatch, testbed):
    """Of the K and V of 64 slots, and of a tier; the kernel's line is all that is read."""
    memory = tmp_path / "meminfo"
    monkeypatch.setattr(device_memory, "MEMORY_INFO", memory)
    words = [*SMALL, "++server.kv_memory_gib={small: 1}", *ON_CPU, "arrivals.duration_s=1"]
    memory.write_text(f"MemTotal: {1 << 30} kB\nMemAvailable: {(1 << 20) - 1} kB\n")
    code, _, error = testbed("run", *words, "swap_space_gib=0", f"hydra.run.dir={tmp_path / 'x'}")
    assert (code, "need 2.0 GiB, 1.0 are free" in error) == (2, True), error
    assert not (tmp_path / "x" / "summary.json").exists()


def test_run_without_torch_is_refused_in_one_line(testbed, monkeypatch):
    real = builtins.__import__

    def without(name, *more):
        if name == "testbed.kernels.engine.served_run":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert ": engine=gpu: " in testbed.refused("run", "engine=gpu")


def test_run_without_a_gpu_is_refused_and_writes_nothing(tmp_path, monkeypatch, capsys):
    def no_gpu():
        raise KernelsUnavailable("the NVIDIA driver lists no GPU")

    monkeypatch.setattr("testbed.kernels.engine.served_run.require_gpu", no_gpu)
    assert (
        main(["run", "engine=gpu", "arrivals.duration_s=1", f"hydra.run.dir={tmp_path / 'x'}"]) == 2
    )
    error = capsys.readouterr().err
    (message,) = [
        line for line in error.splitlines() if line.startswith("testbed")
    ]  # an import may warn beside it
    assert ": engine.device=cuda: " in message, error
    assert list(tmp_path.iterdir()) == []
