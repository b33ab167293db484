"""A command with overrides is one server: what runs has the pool of the notes, or the override is
refused. Every key is tried that such a configuration has.
"""

import pandas as pd
import pytest
from omegaconf import OmegaConf

from testbed.core.errors import InputError
from testbed.experiments.cli.served_command import ServedCommand
from testbed.experiments.plan.space import candidate_of, deployments
from testbed.experiments.runs.compose import composed, configured
from testbed.experiments.vllm_server.answer import fit_of
from testbed.experiments.vllm_server.translation import expand
from testbed.run.build import build
from testbed.run.description import describe
from testbed.vllm.pages import logged_lines

LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
COMMANDS = [
    pytest.param(LLAMA, "0.19", id="full attention"),
    pytest.param("vllm serve google/gemma-3-27b-it --max-model-len 8192", "0.33", id="windows"),
    pytest.param(
        "vllm serve Qwen/Qwen3.5-27B --max-model-len 8192 --max-num-seqs 128", "0.33", id="states"
    ),
]
BASE = ("gpu=h100-80gb", "trace=random", "arrivals.duration_s=1", "cost=analytic")
ROOTS = ("model", "policy", "server", "scheduler", "null_blocks", "swap_space_gib", "workload")


def leaves(values, prefix=""):
    """The keys of a mapping's values, with dots, and the values that are no mappings."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif not str(key).startswith("_"):
            yield f"{prefix}{key}", value


def other(value):
    """Another value of the same type; None for what is no number."""
    if isinstance(value, bool):
        return "false" if value else "true"
    if isinstance(value, int):
        return str(value * 2 or 3)
    return str(value / 2) if isinstance(value, float) and value else None


def logged(config):
    """The lines that the run's own description calls vLLM's."""
    setup = build(config)
    run = describe(config, setup.pool, setup.scheduler, setup.cost)
    if "kv_cache_tokens" not in run:
        return []
    return logged_lines(run["kv_cache_tokens"], run["max_model_len"], run["max_concurrency"])


@pytest.mark.parametrize(("command", "release"), COMMANDS)
def test_no_override_makes_the_run_another_server_than_its_notes(command, release, capsys):
    base = [*BASE, f"release={release}"]
    values = OmegaConf.to_container(composed("run", expand(command, base)), resolve=True)
    keys = [(key, other(value)) for key, value in leaves(values) if key.startswith(ROOTS)]
    capsys.readouterr()
    num_equal = 0
    for key, value in keys:
        if value is None:
            continue
        try:
            config = configured(expand(command, [*base, f"{key}={value}"]))
            lines = logged(config)
        except InputError:
            capsys.readouterr()
            continue
        notes = capsys.readouterr().err
        assert len(lines) == 2
        for line in lines:
            assert line in notes, f"{key}={value}"
        num_equal += 1
    assert num_equal > 12


@pytest.mark.parametrize(
    "word", ["model.num_layers=3", "null_blocks=0", "speculation=heads", "server.workspace_gib=3"]
)
def test_what_decides_the_pool_is_refused_beside_a_command(word):
    with pytest.raises(InputError, match="beside --from-vllm"):
        expand(LLAMA, [*BASE, word])


def test_a_policy_without_groups_does_not_serve_a_model_of_groups():
    with pytest.raises(InputError, match="policy=prefix_caching_v1: "):
        expand(COMMANDS[1].values[0], [*BASE, "policy=prefix_caching_v1"])


@pytest.mark.parametrize(
    ("word", "num_blocks"),
    [
        ("server.num_blocks=5000", 5000),
        ("server.kv_memory_gib=10", 5120),
        ("server.kv_memory_gib={llama-3.1-8b: 10}", 5120),
        ("server.kv_memory_gib=null", 27719),
        ("policy.block_size=32", 13859),
        ("model.kv_dtype_bytes=1", 55438),
    ],
)
def test_a_pool_beside_a_command_is_the_server_s(word, num_blocks):
    words = expand(LLAMA, [*BASE, word])
    assert f"server.num_blocks={num_blocks}" in words
    assert configured(words).server.num_blocks == num_blocks


def test_rows_longer_than_max_model_len_are_rejected_and_counted(tmp_path, testbed):
    """A request of exactly that many tokens is served, as vLLM's server does."""
    rows = [(100, 100), (1000, 24), (1000, 25), (3000, 10)]
    path = tmp_path / "rows.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens\n"
        + "".join(f"{i},{prompt},{output}\n" for i, (prompt, output) in enumerate(rows))
    )
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 1024"
    words = ("gpu=h100-80gb", "trace=csv", f"trace.path={path}", "arrivals=replay", "cost=analytic")
    code, output, notes = testbed("run", "--from-vllm", command, *words)
    assert code == 0, notes
    assert "4 arrived, 2 finished, 2 rejected" in output


def test_each_point_of_a_sweep_has_the_server_of_its_values(testbed, tmp_path):
    words = (
        "gpu=h100-80gb",
        "scheduler.max_num_batched_tokens=512,8192",
        "trace=random",
        "arrivals.duration_s=1",
        f"hydra.sweep.dir={tmp_path}",
    )
    code, _, notes = testbed("run", "-m", "--from-vllm", LLAMA, *words)
    assert code == 0, notes
    table = pd.read_csv(tmp_path / "sweep.csv")
    assert table["scheduler.max_num_batched_tokens"].tolist() == [512, 8192]
    for tokens, logged_tokens in zip((512, 8192), table["kv_cache_tokens"], strict=True):
        fit = fit_of(f"{LLAMA} --max-num-batched-tokens {tokens}", "h100-80gb")
        assert logged_tokens == fit.kv_tokens
        assert f"GPU KV cache size: {fit.kv_tokens:,} tokens" in notes


@pytest.mark.parametrize(
    ("key", "values"),
    [("server.memory_utilization", [0.3, 0.9]), ("server.kv_memory_gib", [5, 10])],
)
def test_an_axis_that_the_command_turns_into_blocks_keeps_its_values(
    testbed, tmp_path, key, values
):
    words = ("gpu=h100-80gb", "trace=random", "arrivals.duration_s=1", "outputs=summary")
    axis = f"{key}={','.join(map(str, values))}"
    code, _, notes = testbed("run", "-m", "--from-vllm", LLAMA, axis, *words)
    assert code == 0, notes
    table = pd.read_csv(tmp_path / "runs" / "sweep.csv")
    assert table[key].tolist() == values
    assert table["pool_blocks"][0] < table["pool_blocks"][1]


def test_several_commands_are_points_of_a_sweep(testbed, tmp_path):
    """vLLM's and SGLang's: the axis has the words that not all of them have."""
    sglang = "sglang serve --model-path meta-llama/Llama-3.1-8B"
    commands = ("--from-vllm", LLAMA, "--from-vllm", f"{LLAMA} -tp 2", "--from-sglang", sglang)
    words = ("gpu=h100-80gb", "trace=random", "arrivals.duration_s=1", "outputs=summary")
    code, _, notes = testbed("run", "-m", *commands, *words, "arrivals.rate=1,2")
    assert code == 0, notes
    table = pd.read_csv(tmp_path / "runs" / "sweep.csv")
    assert table["arrivals.rate"].tolist() == [1, 2] * 3
    assert table["num_gpus"].tolist() == [1, 1, 2, 2, 1, 1]
    assert table["command"].nunique() == 3
    assert all("-tp 2" in name for name in table["command"][2:4])
    assert "-m" in testbed.refused("run", *commands, *words)
    assert "twice" in testbed.refused("run", "-m", *commands, "--from-vllm", LLAMA, *words)


def test_each_deployment_of_a_plan_has_the_server_of_its_values():
    space = deployments([*BASE, "server.num_gpus=1,2"], ServedCommand(LLAMA))
    for deployment, num_gpus in zip(space, (1, 2), strict=True):
        config = candidate_of(deployment).config
        fit = fit_of(f"{LLAMA} --tensor-parallel-size {num_gpus}", "h100-80gb")
        assert (config.server.num_gpus, config.server.num_blocks) == (num_gpus, fit.num_blocks)


def test_a_gpu_and_its_number_are_one_axis(testbed, tmp_path):
    """server=GPU-xN is as many GPUs of that name, whatever -tp says."""
    words = ("trace=random", "trace.input_len=100", "trace.output_len=4", "arrivals.rate=4")
    command = "vllm serve meta-llama/Llama-3.1-8B -tp 4"
    code, _, notes = testbed(
        "run",
        "-m",
        "--from-vllm",
        command,
        "server=h100-80gb-x1,h200-x2",
        *words,
        "arrivals.duration_s=1",
        "--json",
    )
    assert code == 0, notes
    table = (tmp_path / "runs" / "sweep.csv").read_text().splitlines()
    rows = [dict(zip(table[0].split(","), row.split(","), strict=False)) for row in table[1:]]
    assert [row["server"] for row in rows] == ["h100-80gb-x1", "h200-x2"]
    code, _, error = testbed("run", "server=h100-80gb-x0", *words)
    assert code == 2
    assert ": server=h100-80gb-x0: " in error


def test_a_plan_compares_one_server_of_two_gpus_with_two_of_one():
    words = ("server=h100-80gb-x2,h100-80gb-x1", "replicas=1,2")
    command = ServedCommand("vllm serve meta-llama/Llama-3.1-8B")
    candidates = [candidate_of(each) for each in deployments(words, command)]
    assert [each.num_gpus for each in candidates] == [2, 4, 1, 2]
