"""The costs of a run that names none: whose software time they charge, how near they are, and what
they say.
"""

import json
import re
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median

import pytest

import testbed.experiments
from testbed.core.errors import InputError
from testbed.core.shapes import read_model
from testbed.cost.auto import OTHER_MODEL, ROOFLINE
from testbed.cost.model import Work
from testbed.cost.sections import PROFILES
from testbed.cost.software import SoftwareTimes
from testbed.experiments.real.importers.known_shapes import gpu_named
from testbed.experiments.runs.choice_names import files_of, names_of
from testbed.experiments.runs.compose import configured
from testbed.experiments.studies.pressure_curve import measured
from testbed.memory.paged.paged import Paged
from testbed.run import cost_words
from testbed.run.build import build
from testbed.run.cost_words import (
    BETWEEN_HOSTS,
    SERVED_LOADS,
    WHOLE_RUNS,
    Way,
    between_hosts,
    cost_source,
    left_out_rows,
    table_rows,
)
from testbed.run.machine import cost_of, make_cost
from testbed.run.parts import Part

LOGS = Path(testbed.experiments.__file__).parent / "real/vllm_engine/results/h200-llama-3.1-8b"
FIGURES = {"e2e_s": "latency_percent", "ttft_s": "ttft_percent", "tpot_s": "tpot_percent"}
SYSTEMS = [None, *names_of("system")]
SOFTWARE = {
    "vllm": "sosp23",
    "vllm-v0": "vllm-0.2",
    "vllm-v1": "vllm-0.19",
    "fastertransformer": "fastertransformer",
}
DECODES = Work(8, 8 * 512, 512, num_requests=8)
TIMES = tuple(field.name for field in fields(SoftwareTimes) if field.name != "name")
NO_TIME = dict.fromkeys(TIMES, 0.0) | {"extra_s": {}}


@cache
def of_system(system, *words):
    return configured(((f"+system={system}",) if system else ()) + words)


@cache
def servers():
    """Every model that was measured on H200s on every GPU that ships, on as many of them."""
    measured = re.compile(r"h200-(.+)-tp(\d+)")
    counts = dict(measured.fullmatch(path.stem).groups() for path in PROFILES.glob("h200-*.json"))
    server = replace(configured(()).server, kv_memory_gib={}, kv_memory_of=None)
    return [
        (read_model(model), replace(server, num_gpus=int(count), name=gpu, gpu=gpu_named(gpu)))
        for model, count in sorted(counts.items())
        for gpu in sorted(files_of("gpu"))
    ]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_is_charged_the_software_time_of_its_own_system(system):
    config = of_system(system)
    software = config.software
    assert software.name == SOFTWARE.get(system, "engine")
    bare = config.cost.updated(software=config.cost.parameters["software"].updated(**NO_TIME))
    each = (
        software.overhead_per_request_s
        + software.overhead_per_sequence_s
        + software.overhead_per_token_s
    )
    for model, server in servers()[SYSTEMS.index(system) :: 6 * len(SYSTEMS)]:
        cost, kernels = (make_cost(part, model, server, software) for part in (config.cost, bare))
        assert cost.software == software.name
        charged = (cost.iteration(DECODES) - kernels.iteration(DECODES)) / 1e12
        own = 8 * (each + server.num_gpus * software.overhead_per_input_s)
        if software.overhead_s is not None:
            assert charged == pytest.approx(software.overhead_s + own, rel=1e-6)
        else:  # the minimum that the profile measured
            assert 0 < charged - own < 50e-6


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_paper_s_protocol_has_the_2023_system_s_costs(system):
    cost = configured(("+protocol=sosp23", *([f"+system={system}"] if system else []))).cost
    assert cost.name.endswith("derived_cost")
    if system == "vllm":
        assert cost == of_system(system).cost


@pytest.mark.parametrize("software", names_of("software"))
def test_the_paper_s_costs_have_every_software_time_of_the_system(software):
    words = ("+software.extra_s.copies=1e-6", "software.overhead_per_worker_s=1e-3")
    config = configured(("+protocol=sosp23", f"software={software}", *words))
    charged = config.cost.parameters["software"].parameters
    assert {name: charged[name] for name in TIMES} == {
        name: getattr(config.software, name) for name in TIMES
    }


@pytest.mark.parametrize("words", [("+system=vllm-v1",), ("+protocol=sosp23",)])
def test_costs_of_another_system_are_refused(words):
    config = configured((*words, "server=h200", "cost=profile", "cost.path=h200-opt-13b-tp1"))
    with pytest.raises(InputError, match=r"software=.*: "):
        make_cost(config.cost, config.model, config.server, config.software)
    own = config.cost.updated(software=config.cost.parameters["software"].updated(overhead_s=1e-3))
    make_cost(own, config.model, config.server, config.software)


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (
            "server=h200 ~server.kv_memory_gib",
            "measured on NVIDIA H200, 2026-11-22; software time of engine",
        ),
        (
            "server=h200 model=llama-3-8b",
            "measured on NVIDIA H200, 2026-11-21; software time of engine",
        ),
        ("", "derived for a100-40gb from NVIDIA H200, 2026-11-21"),
        ("+protocol=sosp23", "H200, 2026-11-21; software time of sosp23; error"),
        (
            "gpu=l40s model=llama-3-8b +system=vllm-v1",
            "H200, 2026-11-21; software time of vllm-0.19",
        ),
        (
            "gpu=l40s model=llama-3-8b +system=vllm-v1 release=0.33",
            "engine (this project's), since none of vLLM 0.33 was measured",
        ),
        ("model=llama-13b gpu=h200 server.num_gpus=2", "derived for h200 from"),
        (
            "gpu=l4 model=qwen2.5-0.5b model.name=tiny model.hidden_size=64 model.ffn_size=256",
            "roofline, not measured",
        ),
    ],
)
def test_run_prints_source_and_tested_error_of_its_costs_first(run, line, reported):
    first = run(f"{line} arrivals.duration_s=5").output.splitlines()[0]
    assert first.startswith("costs: ")
    assert reported in first
    assert "% " in first.partition("error when tested: ")[2]


@pytest.mark.parametrize(
    ("line", "quantity", "seconds"),
    # By the shipped profile, by one derived for an H100 by hand, and twice by the engine on an H200
    [
        (
            "model=llama-3-8b policy=prefix_caching trace=chat_histories arrivals.rate=8 "
            "arrivals.duration_s=300",
            "ttft_s",
            0.096,
        ),
        (
            "model=llama-3-70b gpu=h100-80gb server.num_gpus=4 arrivals.duration_s=300",
            "tpot_s",
            20.2e-3,
        ),
        (
            "server=h200 ~server.kv_memory_gib arrivals.rate=4 arrivals.duration_s=30 "
            "window_s=[0,30]",
            "tpot_s",
            9.23e-3,
        ),
    ],
)
def test_default_costs_are_close_to_a_selected_profile(run, line, quantity, seconds):
    assert run(line).summary[quantity]["mean"] == pytest.approx(seconds, rel=0.1)


def test_every_way_has_errors_of_at_least_eight_profiles():
    by_way = {}
    for row in left_out_rows():
        assert all(row[column] for column in WHOLE_RUNS.values())
        by_way.setdefault(row["way"], set()).add(
            (row["model"], row["gpu"], row["num_gpus"], row["measured_by"])
        )
    assert set(by_way) == {"other GPU", "other model", "roofline"}
    assert min(map(len, by_way.values())) >= 8


VLLM_ON_H100 = ("model=llama-3.1-8b", "server=h100-80gb")


def cost_with(*words):
    return cost_of(of_system("vllm-v1", *VLLM_ON_H100, *words))


def test_a_system_takes_the_whole_iterations_that_ship_for_its_model_and_gpu():
    """And adds no software time to what has it already."""
    taken, named = cost_with(), cost_with("cost.path=vllm-0.20/h100-llama-3.1-8b-tp1")
    alone = cost_with("cost=profile", "cost.path=vllm-0.20/h100-llama-3.1-8b-tp1")
    assert taken.iteration(DECODES) == named.iteration(DECODES) == alone.iteration(DECODES)
    source = cost_source(of_system("vllm-v1", *VLLM_ON_H100), taken)
    assert "whole iterations of vLLM 0.20.2" in source
    assert "vllm-0.20/h100-llama-3.1-8b-tp1" in source
    assert taken.launch(8, 1, 100) is not None


def test_synchronous_scheduling_takes_them_too():
    """And adds their launches (tests/engine/test_launches.py)."""
    assert "system" in cost_with("scheduler=vllm_v1").fingerprint


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["cost.iterations=null"], id="none by name"),
        pytest.param(["speculation=ngram"], id="drafts"),
        pytest.param(["replicas=2", "prefill_replicas=1"], id="prefill apart from decode"),
        pytest.param(["gpu=h200"], id="another GPU"),
        pytest.param(["model=llama-2-7b"], id="another model"),
        pytest.param(["server.num_gpus=2"], id="two GPUs"),
        pytest.param(["++model.kv_dtype_bytes=1"], id="another type of K and V"),
    ],
)
def test_other_runs_take_no_profile_of_a_system(words):
    cost = cost_with(*words)
    assert "system" not in (cost.fingerprint or {})
    assert cost.launch(8, 1, 100) is None


def test_what_whole_iterations_do_not_read_is_refused():
    with pytest.raises(InputError, match=r"cost\.iterations=nope: "):
        cost_with("cost.iterations=nope")
    with pytest.raises(InputError, match=r"overhead_s=0\.01: "):
        of_system("vllm-v1", *VLLM_ON_H100, "software.overhead_s=0.01")


WHOLE = "cost.path=vllm-0.20/h100-llama-3.1-8b-tp1"
OWN = "overhead_s=1e-3"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([f"cost.software.{OWN}"], id="time"),
        pytest.param(["cost.software.name=mine", f"cost.software.{OWN}"], id="another name"),
        pytest.param(["software.name=mine", f"software.{OWN}"], id="another system"),
        pytest.param(["cost.software.name=null", f"cost.software.{OWN}"], id="no name"),
    ],
)
def test_whole_iterations_charge_no_software_time_of_ones_own(words):
    with pytest.raises(InputError, match=r"software\.overhead_s=0\.001: "):
        of_system("vllm-v1", *VLLM_ON_H100, *words)


def test_whole_iterations_charge_what_a_policy_counts():
    taken = cost_with("+cost.software.extra_s.copies=1e-6")
    work = DECODES._replace(extra=(("copies", 3),))
    assert taken.iteration(work) - taken.iteration(DECODES) == 3 * 10**6


def test_a_profile_that_is_named_charges_software_times_of_ones_own():
    """Whole iterations too, if one says so; those of the system it does not take over."""
    usual, named = (
        cost_with("cost=profile", WHOLE, "cost.software.name=vllm-0.19", *more).iteration(DECODES)
        for more in ((), (f"cost.software.{OWN}",))
    )
    assert named - usual == 10**9
    of_kernels = ("gpu=h200", "cost=profile", "cost.path=h200-opt-13b-tp1")
    with pytest.raises(InputError, match=r"^software\.overhead_s=0\.001: ") as refusal:
        configured((*of_kernels, f"software.{OWN}"))
    configured((*of_kernels, refusal.value.remedy))


def test_a_system_of_ones_own_may_have_whole_iterations(tmp_path):
    (tmp_path / "software").mkdir()
    (tmp_path / "software/own.yaml").write_text(
        "name: own\niterations: vllm-0.20\noverhead_s: 1e-3\n"
    )
    words = (f"--config-dir={tmp_path}", "+system=vllm-v1", *VLLM_ON_H100, "software=own")
    assert "system" in cost_of(configured(words)).fingerprint
    with pytest.raises(InputError, match=r"software\.overhead_s=0\.002: "):
        configured((*words, "software.overhead_s=2e-3"))


@pytest.mark.parametrize(
    ("cost", "key"),
    [
        ("auto", "cost.software"),
        ("auto", "cost.choices"),
        ("profile", "cost.software"),
        ("analytic", "cost.software"),
    ],
)
def test_null_is_no_software_and_no_choices(cost, key):
    words = [f"cost={cost}", *([WHOLE] if cost == "profile" else [])]
    with pytest.raises(InputError, match=rf"^{key}=null: "):
        cost_with(*words, f"{key}=null")


def test_a_system_has_a_name():
    with pytest.raises(InputError, match=r"software\.name"):
        configured(("software.name=null",))


def test_a_vllm_profile_names_its_host_and_what_it_was_worth_on_others():
    config = of_system("vllm-v1", *VLLM_ON_H100)
    taken = cost_of(config)
    about = taken.fingerprint
    source = cost_source(config, taken)
    assert f"{about['device']} ({about['host']}), {about['date']}" in source
    rows = table_rows(BETWEEN_HOSTS)
    largest = max(abs(float(row["latency_percent"])) for row in rows)
    assert f"{largest:.0f}%" in between_hosts()
    assert between_hosts() in cost_words.tested(taken, config.model, config.server)


def test_served_loads_stand_beside_a_profile_that_decodes_alone_have_tested():
    """The profile of kernels has no error of TTFT; the loads were predicted by vLLM's sweeps."""
    config = of_system("vllm-v1", *VLLM_ON_H100, "gpu=h200")
    taken = cost_of(config)
    assert "system" not in taken.fingerprint
    words = cost_words.tested(taken, config.model, config.server)
    assert "not tested for TTFT" in words
    ttft = [abs(float(row["ttft_percent"])) for row in table_rows(SERVED_LOADS)]
    assert f"{len(ttft)} loads" in words
    assert f"TTFT {median(ttft):.0f}% (largest {max(ttft):.0f}%)" in words


@pytest.mark.parametrize(
    ("system", "words", "has_tests"),
    [
        ("vllm-v1", VLLM_ON_H100, True),
        ("vllm-v1", ("model=llama-3.1-8b", "gpu=l40s"), True),
        ("vllm-v1", (*VLLM_ON_H100, "cost=analytic"), True),
        ("vllm-v1", ("model=gpt-oss-20b", "gpu=h100-80gb"), False),
        ("vllm-v1", (*VLLM_ON_H100, "gpu=h200"), False),
        (None, ("cost=profile", "cost.path=gpu-engine/h200-opt-13b-tp1", "gpu=h200"), False),
    ],
    ids=["vllm", "derived", "roofline", "roofline-of-no-plain-model", "kernels", "engine"],
)
def test_whole_runs_test_costs_if_their_words_say_so(system, words, has_tests):
    config = of_system(system, *words)
    costs = (cost_of(config), config.model, config.server)
    says_not = "not tested" in cost_words.tested(*costs)
    percents = cost_words.tested_percents(*costs)
    assert (says_not, bool(percents)) == (not has_tests, has_tests)


@pytest.mark.parametrize("name", [f"pressure-{number}" for number in range(5, 11)])
def test_the_errors_of_served_loads_are_those_of_their_logs(name):
    rows = [row for row in table_rows(SERVED_LOADS) if row["folder"] == name]
    folder = LOGS / name
    predictions = json.loads((folder / "predicted.json").read_text())["predictions"]
    assert {row["load"] for row in rows} == set(predictions)
    for row in rows:
        repeats = measured(folder, row["load"])
        for figure, column in FIGURES.items():
            mean = fmean(repeat[figure] for repeat in repeats)
            error = 100 * (predictions[row["load"]]["figures"][figure] / mean - 1)
            assert float(row[column]) == pytest.approx(error, abs=0.051)


def test_profiles_of_one_gpu_have_their_models_and_those_of_the_same_way_beside_them():
    server = configured(["gpu=a100-80gb", "server.num_gpus=4"]).server
    words = cost_words.left_out(Way(OTHER_MODEL, True), server)
    own, _, wide = words.partition("; of all such GPUs ")
    assert "3 profiles of a100-80gb on several GPUs left out (llama-3-70b, opt-175b, opt-66b" in own
    rows = [
        row
        for row in left_out_rows()
        if row["way"] == OTHER_MODEL and row["source_by"] == "measured" and row["num_gpus"] != "1"
    ]
    count = sum(row["gpu"] != row["source_gpu"] for row in rows)
    assert 0 < count < len(rows)  # the others are of this GPU's own profiles
    assert f"in whole runs of {count} profiles on several GPUs" in wide


def test_errors_of_one_sign_are_said_to_be_so():
    one_gpu = configured(["gpu=l40s"]).server
    own, _, wide = cost_words.left_out(Way(OTHER_MODEL, True), one_gpu).partition("; of all such")
    assert own.endswith("each with latencies too short")
    assert "each with" not in wide
    assert "each with" not in cost_words.left_out(Way(ROOFLINE, None), one_gpu)


def test_decodes_take_the_measured_time_of_the_policys_blocks():
    """As a part of a config, as a class with its own default, and as an object."""
    words = ("cost=profile", "cost.path=h200-opt-13b-tp1", "gpu=h200")

    def time_ps(*more):
        return cost_of(configured((*words, *more))).iteration(DECODES)

    config = configured(words)
    made = build(replace(config, policy=Part(Paged, {"block_size": 32}))).scheduler.policy
    usual, small = time_ps(), time_ps("policy.block_size=8")
    assert small > usual > time_ps("policy.block_size=32")
    assert time_ps("policy.block_size=32", "cost.choices.block_size=8") == small
    assert cost_of(replace(config, policy=Part(made))).iteration(DECODES) == time_ps(
        "policy.block_size=32"
    )
    assert time_ps("policy=contiguous_max", "policy.block_size=8") == small
