"""The Python answers of the cookbook run; its commands are run with those of the other pages."""

import re

import pytest

import testbed
from testbed.experiments.runs.choice_names import CONF
from testbed.memory.paged.paged import Paged

EXPERIMENTS = CONF.parent
TEXT = (EXPERIMENTS / "site" / "pages" / "cookbook.md").read_text(encoding="utf-8")


def test_the_cookbook_answers_ten_questions():
    questions = re.findall(r"^## (\d+)\. .*\?$", TEXT, re.MULTILINE)
    assert questions == [str(i) for i in range(1, 11)]
    assert len(re.findall(r"^```(?:bash|python)$", TEXT, re.MULTILINE)) == 10


@pytest.mark.parametrize("answer", re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
def test_a_python_answer_runs(answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"testbed": testbed, "Paged": Paged, "sessions": EXPERIMENTS / "examples" / "sessions.jsonl"}
    exec(answer.replace("duration_s=60", "duration_s=10"), names)
    assert capsys.readouterr().out or list(tmp_path.iterdir())
