"""What README and cookbook say of files and Python is there; test_docs_commands.py runs their command lines."""

import re
from pathlib import Path

import pytest

import testbed
from testbed.memory.paged.paged import Paged

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COOKBOOK = (ROOT / "experiments" / "site" / "pages" / "cookbook.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


def test_first_two_readme_commands_install_and_test():
    assert BLOCKS[:2] == ["pip install -e . && testbed reproduce fig2 fig13\n", 'pip install -e ".[test]" && pytest\n']


def test_ci_runs_the_test_command_of_the_readme():
    assert BLOCKS[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_readme_names_only_existing_files():
    for path in re.findall(r"`((?:testbed|tests|experiments|traces|kernels)(?:/[\w./]*)?)`", README):
        assert (ROOT / path).exists(), path


def test_readme_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 10
    exec(compile(code.replace("duration_s=600", "duration_s=60"), "README.md", "exec"), {"__name__": "__main__"})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0.5
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_the_cookbook_answers_ten_questions():
    questions = re.findall(r"^## (\d+)\. .*\?$", COOKBOOK, re.MULTILINE)
    assert questions == [str(i) for i in range(1, 11)]
    assert len(re.findall(r"^```(?:bash|python)$", COOKBOOK, re.MULTILINE)) == 10


@pytest.mark.parametrize("answer", re.findall(r"```python\n(.*?)```", COOKBOOK, re.DOTALL))
def test_a_python_answer_runs(answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"testbed": testbed, "Paged": Paged, "sessions": ROOT / "experiments" / "examples" / "sessions.jsonl"}
    exec(answer.replace("duration_s=60", "duration_s=10"), names)
    assert capsys.readouterr().out or list(tmp_path.iterdir())
