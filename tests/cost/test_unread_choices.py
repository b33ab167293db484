"""Values that a run's times or its pool do not read are refused, and a roofline charges the
software times of its system.
"""

import json

import pytest
from refusals import refuses
from tiny import analytic

from testbed import simulate
from testbed.core.request import PS
from testbed.cost.model import Work
from testbed.cost.sections import PROFILES

SHORT = {"rate": 1, "duration_s": 3}
US = PS // 10**6


@pytest.mark.parametrize(
    "word",
    [
        "attention_scale=1.5",
        "swap_waits='all in'",
        "cuda_graph_sizes=[1,2]",
    ],
)
def test_a_roofline_refuses_choices_of_measured_times(word):
    name = word.partition("=")[0]
    words = ("model=gemma-3-27b", f"++cost.choices.{word}")
    refuses(f"cost.choices.{name}=.*: nothing reads it", simulate, *words, **SHORT)


@pytest.mark.parametrize("pool", [(), ("~server.kv_memory_gib", "server.num_blocks=400")])
def test_a_given_pool_does_not_read_the_gpus_memory(pool):
    words = ("server.gpu.memory_bytes=80000000000", *pool)
    refuses("server.gpu.memory_bytes=80000000000: ", simulate, *words, **SHORT)


def test_a_computed_pool_reads_the_gpus_memory():
    small, whole = (
        simulate("server=h200", *words, **SHORT).summary["run"]["pool_gib"]
        for words in (("server.gpu.memory_bytes=80000000000",), ())
    )
    assert small < whole


def test_a_roofline_charges_inputs_and_forks():
    work = Work(4, 400, 100, num_requests=2, forks=3)
    plain = analytic(overhead_per_sequence_s=10e-6)
    inputs = analytic(overhead_per_sequence_s=10e-6, overhead_per_input_s=7e-6)
    forks = analytic(overhead_per_sequence_s=10e-6, sequences_per_fork=2.5)
    assert inputs.iteration(work) - plain.iteration(work) == 2 * 7 * US
    assert forks.iteration(work) - plain.iteration(work) == 3 * 25 * US


@pytest.mark.parametrize("has_sheet", [True, False])
@pytest.mark.parametrize("name", ["memory_bandwidth", "fp16_flops", "fp8_flops"])
def test_a_changed_data_sheet_is_refused_whether_or_not_the_file_has_one(name, has_sheet, tmp_path):
    profile = json.loads((PROFILES / "h200-opt-13b-tp1.json").read_text())
    if not has_sheet:
        del profile["gpu"]
    (tmp_path / "p.json").write_text(json.dumps(profile))
    words = ("model=opt-13b", "gpu=h200", "cost=profile", f"cost.path={tmp_path / 'p.json'}")
    key = f"server.gpu.{name}"
    refuses(key, simulate, *words, f"{key}=1e12", rate=1, duration_s=1)
    simulate(*words, rate=1, duration_s=1)
