"""The page of vLLM's releases, and the facts that it lists."""

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

import pytest

import testbed
from testbed.experiments.vllm_server.release_page import page
from testbed.vllm.releases import RELEASES, Release, facts

SOURCES = Path(testbed.__file__).parent
BESIDE_VLLM = ("experiments", "kernels")  # drive vLLM itself, or keep what was measured of it
NAMED = re.compile(rf"(vLLM|[Rr]eleases?)\W{{1,3}}v?({'|'.join(map(re.escape, RELEASES))})\b")


def test_the_page_has_a_row_for_each_fact():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [*facts()]
    assert "| `utilization`: default of --gpu-memory-utilization | 0.9 | 0.92 |" in page()


def test_every_fact_has_a_meaning_and_differs_between_two_releases():
    assert [*facts()] == [field.name for field in fields(Release) if field.name != "number"]
    for name in facts():
        assert len({getattr(release, name) for release in RELEASES.values()}) > 1, name


def test_the_installed_vllm_has_the_files_of_the_facts():
    spec = importlib.util.find_spec("vllm")
    if spec is None:
        pytest.skip("vllm is not installed")
    package = Path(spec.origin).parent
    for name, fact in facts().items():
        file, *function = fact.place.split(" ")
        path = package / file
        if not function or not path.is_file():  # a measurement, or a file of another release
            continue
        last = function[0].rpartition(".")[2]
        assert f" {last}" in path.read_text(encoding="utf-8"), name


def test_no_other_module_names_a_release():
    for path in SOURCES.rglob("*.py"):
        folder = path.relative_to(SOURCES).parts[0]
        if folder not in BESIDE_VLLM and path.name != "releases.py":
            assert not NAMED.search(path.read_text(encoding="utf-8")), path


def test_every_fact_is_read():
    folders = (SOURCES, (SOURCES / "experiments").resolve())
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    for name in facts():
        assert any(f".{name}" in text for text in texts), name
