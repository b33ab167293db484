"""The engine without a GPU, or with a config that is none: one line, exit code 2, nothing left behind."""

import json

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from kernels.engine import config
from kernels.engine.__main__ import main
from kernels.launch.compile import KernelsUnavailable

PART = {"_target_": "a.B"}
PARTS = {name: PART for name in ("model", "server", "policy", "scheduler", "preemption", "trace", "arrivals")}
WRONG = {
    "nowhere.yaml": (None, "no such file"),
    "list.yaml": ("- 1\n", "which is a mapping"),
    "broken.yaml": ("a: [\n", "not YAML"),
    "broken.json": ("{", "not JSON"),
    "bytes.yaml": (b"\xff\xfe\x00", "not UTF-8"),
    "empty.yaml": ("", "which is a mapping"),
    "half.json": (json.dumps({"model": PART}), "server is missing"),
    "word.json": (json.dumps({**PARTS, "policy": "paged"}), "policy is 'paged'"),
    "option.json": (json.dumps({**PARTS, "engine": {"x": 1}}), "engine.x is unknown"),
    "device.json": (json.dumps({**PARTS, "engine": {"device": "tpu"}}), "engine.device is 'tpu'"),
    "class.json": (json.dumps({**PARTS, "engine": {"device": "cpu"}}), "a.B cannot be loaded"),
}


def ended(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("name", WRONG)
def test_a_config_that_is_none(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content, culprit = WRONG[name]
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = list(tmp_path.iterdir())
    assert culprit in ended([name], capsys)
    assert list(tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", [[], ["--nope"], ["generate"]], ids=str)
def test_arguments_that_are_missing(arguments, capsys):
    assert "--help" in ended(arguments, capsys)


def test_no_gpu(tmp_path, monkeypatch, capsys):
    def none():
        raise KernelsUnavailable("the NVIDIA driver lists no GPU")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "require_gpu", none)
    (tmp_path / "run.json").write_text(json.dumps(PARTS))
    assert "engine.device is cuda: the NVIDIA driver lists no GPU" in ended(["run.json"], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
