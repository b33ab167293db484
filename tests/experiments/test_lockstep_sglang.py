"""`testbed lockstep sglang`: the options of the same server; random runs beside the installed
SGLang, skipped if there is none.
"""

import json
from importlib.util import find_spec
from random import Random

import pytest
from refusals import check_refusal

from testbed.core.hf_config import model_of
from testbed.core.shapes import read_model
from testbed.experiments.cli.lockstep import OtherParts, RandomRuns, lockstep
from testbed.experiments.real.lockstep import sglang_draws
from testbed.experiments.real.lockstep.comparison import ITERATION_PS, compare
from testbed.experiments.real.lockstep.model_configs import config_of
from testbed.experiments.real.lockstep.sglang_capacities import check_capacities
from testbed.experiments.real.lockstep.sglang_sides import sides_of_sglang
from testbed.experiments.real.lockstep.sides import served
from testbed.memory.offloading.host_tree import HostTree

needs_sglang = pytest.mark.skipif(
    find_spec("sglang") is None, reason="sglang 0.5.23 is not installed (.ci/run installs it)"
)
SMALL = ("model=llama-3-8b", "~server.kv_memory_gib", "server.num_blocks=300")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("scheduler=sglang", "policy=radix"),
            {
                "total_tokens": 300,
                "page_size": 1,
                "overlaps": True,
                "disable_radix_cache": False,
                "chunked_prefill_size": 8192,
                "context_length": 8192,
            },
        ),
        (
            ("scheduler=sglang_no_overlap", "policy=paged", "policy.watermark=0"),
            {"total_tokens": 4800, "page_size": 16, "overlaps": False, "disable_radix_cache": True},
        ),
    ],
)
def test_sglangs_server_has_the_options_of_the_configuration(words, expected):
    from testbed.experiments.real.lockstep.sglang_installation import options_of

    options = options_of(sides_of_sglang((*SMALL, *words), None)[1])
    assert {name: getattr(options, name) for name in expected} == expected


def test_another_scheduler_is_refused():
    check_refusal(("scheduler=", "sglang"), sides_of_sglang, SMALL, None)


@needs_sglang
def test_pools_are_those_that_the_installed_sglang_computes():
    models = ("llama-3.1-8b", "gpt-oss-120b", "deepseek-v3")
    (line,) = check_capacities(("l40s",), models)
    assert line.startswith("33 of 33 commands")


def test_the_shapes_of_the_compared_files_are_those_that_ship(tmp_path):
    for name in ("llama-3.1-70b", "qwen3-32b", "gpt-oss-120b"):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config_of(name)), encoding="utf-8")
        shape, shipped = model_of(path), read_model(name)
        assert shape.kv_bytes_per_token == shipped.kv_bytes_per_token
        assert shape.max_len == shipped.max_len


def test_options_of_vllm_are_refused():
    check_refusal(("lmcache", "vllm"), lockstep, "sglang", parts=OtherParts(lmcache=True))
    check_refusal(("windows",), lockstep, "sglang", drawn=RandomRuns(1, windows=True))


@needs_sglang
@pytest.mark.parametrize("seed", range(6))
def test_random_runs_decide_as_sglang(seed):
    words, requests = sglang_draws.draw(Random(seed), (), 50)
    make, setup = sides_of_sglang(words, requests)
    comparison = compare(make(), served(setup)[0], ITERATION_PS)
    assert comparison.num_equal == comparison.num_iterations > 0
    assert comparison.difference == []


@needs_sglang
@pytest.mark.parametrize("seed", [3, 7])
def test_every_step_of_a_server_with_hicache_equals_sglangs(seed, capsys):
    drawn = RandomRuns(random=3, seed=seed, requests=50)
    assert lockstep("sglang", parts=OtherParts(offload=True), drawn=drawn) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "steps of 3 loads are equal" in line


@needs_sglang
def test_a_host_that_evicts_nothing_is_found(monkeypatch, capsys):
    monkeypatch.setattr(HostTree, "_is_host_leaf", lambda tree, run: False)
    drawn = RandomRuns(random=3, seed=3, requests=50)
    assert lockstep("sglang", parts=OtherParts(offload=True), drawn=drawn) == 1
    assert "first difference" in capsys.readouterr().out
