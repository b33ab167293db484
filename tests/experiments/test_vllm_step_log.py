"""The schedulers that log a vLLM's iterations, over the scheduler of the vLLM that is installed."""

import csv
import json

import pytest

from testbed.experiments.real.vllm_engine.installed import IN_VLLM
from testbed.experiments.real.vllm_engine.logged_steps import read_steps

WORDS = (
    "+system=vllm-v1",
    "policy.block_size=4",
    "~server.kv_memory_gib",
    "server.num_blocks=40",
    "scheduler.max_num_batched_tokens=32",
    "trace=csv",
    "trace.path=few.csv",
    "arrivals=replay",
    "cost=analytic",
)
LENGTHS = ((30, 20), (50, 30), (16, 40), (16, 1))  # prompts and outputs


@pytest.fixture
def compared(testbed, tmp_path, monkeypatch):
    """Compare vLLM's scheduler with ours on four requests; what is printed."""
    pytest.importorskip("vllm")
    rows = [f"{prompt},{output},{i}" for i, (prompt, output) in enumerate(LENGTHS)]
    (tmp_path / "few.csv").write_text(
        "\n".join(["input_tokens,output_tokens,arrival_s", *rows]) + "\n"
    )
    return lambda: testbed("lockstep", "vllm", *WORDS)


@pytest.fixture
def logged(monkeypatch, tmp_path):
    """vLLM's asynchronous scheduler is the one that logs."""
    pytest.importorskip("vllm")
    monkeypatch.setenv("TESTBED_STEPS", str(tmp_path))
    monkeypatch.syspath_prepend(str(IN_VLLM))
    import step_log
    from vllm.v1.core.sched import async_scheduler

    monkeypatch.setattr(async_scheduler, "AsyncScheduler", step_log.LoggedAsyncScheduler)
    monkeypatch.setattr(step_log, "MOST_ROWS", 1)  # written at once, for nothing shuts it down
    return tmp_path


def test_logging_changes_no_decision(compared, logged):
    code, output, error = compared()
    assert code == 0, error
    assert "equal" in output


def test_each_iteration_is_a_row(compared, logged):
    """Every prompt's tokens are computed once more for each preemption; decodes are the rest."""
    compared()
    steps = read_steps(logged)
    with (logged / "preempted.csv").open(newline="") as file:
        preemptions = sum(int(row["preemptions"]) for row in csv.DictReader(file))
    prompt_tokens = sum(prompt for prompt, _ in LENGTHS)
    if preemptions == 0:
        assert steps.prompt_tokens.sum() == prompt_tokens
    assert steps.prompt_tokens.sum() >= prompt_tokens
    assert steps.decodes.sum() >= sum(output - 1 for _, output in LENGTHS) - preemptions
    assert (steps.result > steps.planned).all()
    facts = json.loads((logged / "facts.json").read_text())
    assert (facts["num_gpu_blocks"], facts["max_num_batched_tokens"]) == (40, 32)
    assert facts["async_scheduling"] is True
