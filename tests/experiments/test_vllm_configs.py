"""`testbed lockstep vllm --configs`: what `fits` says of a config.json, beside vLLM's own classes.

A process names its GPUs to vLLM as it is imported, so that each test starts one.
"""

import json
import subprocess
import sys

import pytest

from testbed.core.hf_fields import supported, types
from testbed.experiments.real.lockstep.config_comparison import FAMILIES
from testbed.experiments.real.lockstep.config_variations import variations

BASES = json.loads(FAMILIES.read_text(encoding="utf-8"))
MAIN = "import sys; from testbed.experiments.cli.main import main; sys.exit(main())"
QUICK = ("mistral", "qwen3-next")


def test_every_supported_type_has_a_family():
    kinds = {(config.get("text_config") or config)["model_type"] for config in BASES.values()}
    assert {types()["alias"].get(kind, kind) for kind in kinds} == set(supported())


@pytest.mark.parametrize("name", BASES)
def test_a_family_has_at_least_twenty_variations(name):
    found = dict(variations(BASES[name]))
    assert len(found) >= 20
    assert found["as-it-is"] == BASES[name]


@pytest.mark.parametrize("name", QUICK)
def test_vllm_answers_as_fits_does(name, tmp_path):
    pytest.importorskip("vllm")
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BASES[name]), encoding="utf-8")
    words = ("-c", MAIN, "lockstep", "vllm", "--configs", str(tmp_path))
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert " equal" in lines[-1], done.stderr
    assert not [line for line in lines[:-1] if ", vLLM " in line]
