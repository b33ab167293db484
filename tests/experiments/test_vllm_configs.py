"""`testbed lockstep vllm --configs` and `--starts`: what `fits` says of a config.json and of
options, beside vLLM's own classes.

A process names its GPUs to vLLM as it is imported, so that each test starts one.
"""

import json
import subprocess
import sys

import pytest

from testbed.core.hf_fields import supported, types
from testbed.experiments.real.lockstep.config_variations import variations
from testbed.experiments.real.lockstep.model_configs import FAMILIES

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
    lines = compared("--configs", str(tmp_path))
    assert not [line for line in lines[:-1] if ", vLLM " in line]


def test_servers_start_as_in_vllm(tmp_path):
    """Options drawn for files drawn; those that are not modelled are named."""
    pytest.importorskip("vllm")
    lines = compared("--starts", str(tmp_path), "--random", "40", "--seed", "11")
    assert not [line for line in lines[:-1] if "here:" not in line]
    assert "start in vLLM alone" not in lines[-1]


def test_pools_of_models_that_ship_equal_vllms():
    """Windows, latents and full attention on one GPU and divided, prefix caching on and off."""
    pytest.importorskip("vllm")
    code = (
        "from testbed.experiments.real.lockstep.capacities import check_capacities as check;"
        "print(*check(['gemma-2-27b', 'deepseek-v3', 'qwen3-30b-a3b'], ['b200']), sep='\\n')"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=False)
    assert done.stdout.startswith("18 starts: 18 equal"), done.stdout + done.stderr


def compared(*words):
    """The lines of a comparison, the counts last."""
    command = (sys.executable, "-c", MAIN, "lockstep", "vllm", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert " equal" in lines[-1], done.stderr
    return lines
