"""Tables of a narrow terminal, and of none: names and JSON are in one piece."""

import re

import pytest

from testbed.experiments.cli.output import plain_table, show

LLAMA = "vllm serve meta-llama/Llama-3.1-8B"
EAGLE = '{"method": "eagle3", "model": "yuhuili/EAGLE3-X", "num_speculative_tokens": 3}'
DRAFTS = f"{LLAMA} --speculative-config '{EAGLE}'"
LOAD = ("gpu=h100-80gb", "trace=random", "arrivals.rate=2", "arrivals.duration_s=2", "--quiet")


@pytest.fixture(params=["80", ""], ids=["80 columns", "no terminal"])
def width(request, monkeypatch):
    """The columns of the terminal, if there is one."""
    monkeypatch.setenv("COLUMNS", request.param)
    return request.param


def test_a_long_command_of_a_sweep_has_a_number_and_a_line(testbed, width):
    sweep = ("run", "-m", "--from-vllm", LLAMA, "--from-vllm", DRAFTS, *LOAD, "--seeds", "2")
    lines = testbed(*sweep)[1].splitlines()
    assert f"(1) --speculative-config {EAGLE}" in lines
    assert [line for line in lines if re.search(r"\(1\) - plain", line)]
    assert [line for line in lines if "plain" in line and "±" in line]


def test_a_summary_breaks_no_word(testbed, tmp_path, width):
    path = f"lengths-{'x' * 60}.csv"
    (tmp_path / path).write_text("input_tokens,output_tokens\n10,10\n")
    assert path in testbed("run", "trace=csv", f"trace.path={path}", *LOAD[2:])[1]


@pytest.mark.parametrize("group", ["policy", "scheduler"])
def test_a_list_has_the_names_of_its_classes(testbed, width, group):
    lines = testbed("list", group)[1].splitlines()
    assert [line for line in lines if re.search(r"testbed(\.\w+)+\.[A-Z]\w+", line)]


def test_a_table_s_names_stay_in_one_line(capsys, width):
    name = "swap to 20 GiB of host memory (no option of vLLM's)"
    show(plain_table(["change", "why"], [[name, "word " * 40]]))
    assert name in capsys.readouterr().out
