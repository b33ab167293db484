"""What the README tells people to type works."""

import json
import re
from pathlib import Path

import pytest

from experiments.commands import bench, reproduce
from experiments.runs.known_choices import files_of
from testbed.core.shapes import shipped

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
INLINE = [code.replace("\n", " ") for code in re.findall(r"`(testbed [^`]*)`", README)]
SHORT = ("arrivals.duration_s=10", "outputs=summary")
FILES = {
    "lengths.csv": "input_tokens,output_tokens\n2,3\n",
    "sessions.jsonl": json.dumps(
        {"block_size": 64, "requests": [{"t": 0, "type": "n", "in": 64, "out": 2, "hash_ids": [1], "think_time": 0}]}
    ),
    "mine/model/my.yaml": "\n".join(
        ["_target_: testbed.core.specs.ModelSpec", *(f"{k}: {v}" for k, v in shipped("qwen2.5-0.5b").shape.items())]
    ),
    "mine/gpu/card.yaml": files_of("gpu")["l4"].read_text(encoding="utf-8"),
    "AzureLLMInferenceTrace_conv.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
}


def runs():
    """Every `testbed run` of the README that needs nothing but the project, and no GPU."""
    lines = [line for line in [*LINES, *INLINE] if line.startswith("testbed run")]
    return [line.split() for line in lines if "--help" not in line and "engine=gpu" not in line]


def test_the_first_two_commands_do_all_the_set_up():
    assert BLOCKS[:2] == [
        "pip install -e . && testbed reproduce fig2 fig13\n",
        'pip install -e ".[test]" && pytest\n',
    ]


def test_ci_calls_the_test_command_of_the_readme():
    script = (Path(__file__).parents[2] / ".ci" / "run").read_text(encoding="utf-8")
    assert BLOCKS[1] in script


@pytest.mark.parametrize("words", runs(), ids=" ".join)
def test_every_run_runs(testbed, tmp_path, words):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    replay = any(word in ("arrivals=replay", "arrivals=sessions") for word in words)
    arguments = [word for word in words[1:] if "joblib" not in word]
    extra = SHORT[1:] if replay else SHORT
    code, _, error = testbed(*arguments, *extra)
    assert (code, error) == (0, "")


@pytest.mark.parametrize("line", [line for line in [*LINES, *INLINE] if " reproduce " in line])
def test_every_reproduce_names_known_figures(line):
    words = line.partition("testbed reproduce ")[2].split()
    assert reproduce.chosen(reproduce.parser().parse_args(words).figures)


def test_the_bench_is_called_as_it_is():
    assert "`testbed bench`" in README
    assert callable(bench.main)


def test_every_file_and_folder_named_exists():
    for path in re.findall(r"`((?:testbed|tests|experiments|traces|kernels)(?:/[\w./]*)?)`", README):
        assert (Path(__file__).parents[2] / path).exists(), path


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 10
    exec(compile(code.replace("duration_s=600", "duration_s=60"), "README.md", "exec"), {"__name__": "__main__"})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0.5
    assert (tmp_path / "run.png").stat().st_size > 10_000
