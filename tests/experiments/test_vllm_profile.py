"""A vLLM's profile from its logged iterations: planted times are found again."""

import json
from pathlib import Path

import planted_vllm as planted
import pytest

from testbed.core.errors import InputError
from testbed.core.shapes import read_model
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import read_profile
from testbed.experiments import vllm_engine
from testbed.experiments.vllm_engine.calibrate import lines, profile_of_folder, with_fit
from testbed.experiments.vllm_engine.host_scale import with_launches_of
from testbed.experiments.vllm_engine.profile import Machine, profile_of
from testbed.experiments.vllm_engine.smooth import lower_hull, rising
from testbed.experiments.vllm_engine.steps import read_steps

KEPT = Path(vllm_engine.__file__).with_name("results")
MODEL = read_model("llama-3.1-8b")
MS = 1e9  # picoseconds
MACHINE = Machine(
    model=MODEL,
    num_gpus=1,
    graph_sizes=planted.SIZES,
    gpu=None,
    fingerprint={"source": "measured", "host": "a host"},
)


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps")
    planted.sweeps().write(folder)
    return read_steps(folder)


@pytest.fixture(scope="module")
def cost(steps):
    return ProfileCost(MODEL, None, profile_of(steps, MACHINE))


@pytest.mark.parametrize(("num_seqs", "mean"), [(1, 500), (8, 200), (24, 700), (64, 1000)])
def test_decodes(cost, num_seqs, mean):
    """24 decodes are padded to 32."""
    context = num_seqs * mean
    padded = next(size for size in planted.SIZES if size >= num_seqs)
    expected = planted.computing_ms((), padded, context)
    work = Work(num_seqs, context, mean)
    assert cost.iteration(work) / MS == pytest.approx(expected, rel=0.02)
    assert cost.decode(work).first_ps == cost.iteration(work)


@pytest.mark.parametrize(("past", "new"), [(0, 1000), (0, 3000), (3000, 2048), (0, 8192)])
def test_prompts_beyond_the_graphs(cost, past, new):
    expected = planted.computing_ms(((past, new),), 0, 0)
    assert cost.iteration(Work(prefill=((new, past),))) / MS == pytest.approx(expected, rel=0.03)


def test_prompts_among_decodes(cost):
    expected = planted.computing_ms(((0, 1500),), 16, 16 * 300)
    work = Work(16, 16 * 300, 300, prefill=((1500, 0),))
    assert cost.iteration(work) / MS == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("decodes", "prompt_tokens", "expected"),
    [
        pytest.param(0, 40, 9.0, id="a lone prompt within the graphs"),
        pytest.param(0, 3000, 25.0, id="a lone prompt beyond them"),
        pytest.param(8, 16, 9.0, id="among decodes"),
        pytest.param(32, 700, 25.0, id="among decodes, beyond the graphs"),
        pytest.param(200, 700, 25.0, id="among more decodes than were logged"),
        pytest.param(32, 30_000, 25.0, id="more tokens than were logged"),
    ],
)
def test_launches_of_prompts(cost, decodes, prompt_tokens, expected):
    assert cost.launch(decodes, 1, prompt_tokens).whole_ps / MS == pytest.approx(expected, rel=0.02)


def test_launches_of_decodes(cost):
    launch = cost.launch(8, 0, 0)
    assert launch.first_ps / MS == pytest.approx(planted.DECODE_LAUNCH[0], abs=0.1)
    assert launch.whole_ps / MS == pytest.approx(planted.DECODE_LAUNCH[1], abs=0.1)


def test_the_errors_of_prompts_among_decodes_are_small(steps):
    assert with_fit(steps, MACHINE)["fit"]["p95_error"] < 0.03


def test_without_prompts_among_decodes_launches_are_scaled_from_another_host(tmp_path, steps):
    """The other host launches in half the time, and so its decodes are launched in half."""
    own = planted.sweeps()
    is_apart = [row for row in own.rows if not (row[1] and row[2])]
    own.rows = is_apart
    own.write(tmp_path)
    lone = profile_of(read_steps(tmp_path), MACHINE)
    assert "launch_decodes" not in lone["sections"]
    other = profile_of(steps, MACHINE)
    halved = {
        name: {**section, "points": [[*row[:-1], row[-1] / 2] for row in section["points"]]}
        for name, section in other["sections"].items()
        if name.startswith("launch_")
    }
    scaled = with_launches_of(lone, {**other, "sections": {**other["sections"], **halved}})
    cost = ProfileCost(MODEL, None, scaled)
    assert cost.launch(8, 1, 16).whole_ps / MS == pytest.approx(9.0, rel=0.02)
    assert cost.launch(8, 0, 0).whole_ps / MS == pytest.approx(2.0, rel=0.05)
    assert "times 2.00" in scaled["fingerprint"]["launches_from"]


def launches_of(profile, sizes, kinds):
    """The profile with these launches of lone prompts (us, by the most tokens) and graphs."""
    points = [["whole", tokens, 1, us] for tokens, us in kinds.items()]
    section = {**profile["sections"]["launch_prompts"], "points": points}
    sections = {**profile["sections"], "launch_prompts": section}
    return {**profile, "cuda_graph_sizes": sizes, "sections": sections}


@pytest.fixture(scope="module")
def other_host(steps):
    return profile_of(steps, MACHINE)


@pytest.fixture(scope="module")
def without_decodes(other_host):
    sections = {k: v for k, v in other_host["sections"].items() if k != "launch_decodes"}
    return {**other_host, "sections": sections}


def test_launches_are_paired_by_what_they_are(without_decodes, other_host):
    """Graphs of other sizes have other bounds."""
    own = launches_of(without_decodes, [1, 256], {256: 300.0, 8192: 4000.0})
    other = launches_of(other_host, [1, 512], {512: 100.0, 2048: 2000.0})
    points = with_launches_of(own, other)["sections"]["launch_prompts"]["points"]
    assert points == [["whole", 256, 1, 300.0], ["whole", 8192, 1, 4000.0]]


@pytest.mark.parametrize(
    ("own", "others"),
    [
        pytest.param({256: 3.0}, {8192: 3.0}, id="within, and beyond"),
        pytest.param({8192: 3.0}, {8192: 3.0}, id="beyond alone"),
        pytest.param({256: 3.0, 8192: 5.0}, {256: 3.0}, id="both, and within"),
    ],
)
def test_launches_of_other_kinds_are_not_paired(without_decodes, other_host, own, others):
    lone, other = (
        launches_of(profile, [1, 256], kinds)
        for profile, kinds in ((without_decodes, own), (other_host, others))
    )
    with pytest.raises(InputError, match="--launches-from: has lone prompts"):
        with_launches_of(lone, other)


def test_sweeps_that_the_time_limit_left_out_are_named_in_the_profile(tmp_path):
    planted.sweeps().write(tmp_path)
    facts = {"async_scheduling": True, "tensor_parallel_size": 1, "graph_sizes": planted.SIZES}
    about = {"vllm": "0.20.2", "device": "a device", "host": "a host", "torch": "2"}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    (tmp_path / "machine.json").write_text(json.dumps(about))
    whole = profile_of_folder(tmp_path, MODEL, "vllm serve m")
    assert "sweeps_left_out" not in whole["fingerprint"]
    waves = "name,started_s,ended_s\nwarm-up,0,0.1\nprompts,0.1,9\ndecodes at 128,,\n"
    (tmp_path / "waves.csv").write_text(waves)
    cut = profile_of_folder(tmp_path, MODEL, "vllm serve m")
    assert cut["fingerprint"]["sweeps_left_out"] == ["decodes at 128"]
    assert any("out of time before these sweeps" in line for line in lines(cut))


def test_too_few_kinds_of_prompts_are_refused(tmp_path):
    only = planted.Planted()
    for count in (1, 8):
        for mean in (100, 1000):
            only.run([((), count, count * (mean + step)) for step in range(12)])
    only.run([(((0, 4000),), 0, 0), ((), 0, 0)])
    only.write(tmp_path)
    with pytest.raises(InputError, match="3 are needed"):
        profile_of(read_steps(tmp_path), MACHINE)


def test_a_folder_without_iterations_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"steps\.csv"):
        read_steps(tmp_path)
    (tmp_path / "steps.csv").write_text("schedule_start_s,result_s\n1,2\n")
    with pytest.raises(InputError, match="no column prompts"):
        read_steps(tmp_path)


def test_what_only_warms_up_is_left_out(tmp_path):
    planted.sweeps().write(tmp_path)
    count = len(read_steps(tmp_path))
    (tmp_path / "waves.csv").write_text("name,started_s,ended_s\nwarm-up,0,0.2\n")
    assert 0 < len(read_steps(tmp_path)) < count


def test_one_outlier_makes_no_kink():
    assert rising([1.0, 2.0, 9.0, 3.0, 4.0]).tolist() == [1.0, 2.0, 3.0, 4.0, 4.0]
    assert rising([1.0, 2.0, 3.0, 4.0]).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_the_hull_is_below_and_convex():
    points = {1: 6.0, 2: 6.5, 4: 6.2, 8: 7.5, 16: 8.0, 32: 20.0}
    hull = lower_hull(points)
    assert all(hull[x] <= points[x] for x in points)
    assert hull == pytest.approx({1: 6.0, 2: 6 + 0.2 / 3, 4: 6.2, 8: 6.8, 16: 8.0, 32: 20.0})


@pytest.mark.parametrize("name", ["llama-3.1-8b", "opt-13b", "qwen2.5-7b"])
def test_the_profiles_that_ship_are_those_of_the_kept_sweeps(name):
    shipped = read_profile(f"vllm-0.20/h100-{name}-tp1")
    about = shipped["fingerprint"]
    refitted = profile_of_folder(
        KEPT / f"h100-{name}" / "sweeps", read_model(name), about["command"]
    )
    assert refitted["sections"] == shipped["sections"]
    assert refitted["fit"] == shipped["fit"]


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("h100-llama-3.1-8b/2000-blocks-16.7", "llama-3.1-8b"),
        ("h100-opt-13b/1500-blocks-6.7", "opt-13b"),
        ("h100-qwen2.5-7b/1500-blocks-9.3", "qwen2.5-7b"),
    ],
)
def test_served_workloads_are_predicted_within_2_percent(testbed, log, name):
    """By the sweeps alone: the logs were recorded after these profiles, on the same machines."""
    answer = json.loads(
        testbed.done(
            "validate",
            str(KEPT / log / "requests.jsonl.gz"),
            *("+system=vllm-v1", "policy=paged", "policy.block_size=16", "policy.watermark=0"),
            *("server=h100-80gb", "cost=profile", f"cost.path=vllm-0.20/h100-{name}-tp1"),
            *("scheduler.max_num_seqs=1024", "scheduler.max_num_batched_tokens=8192"),
            "--json",
        )
    )
    errors = {error["metric"]: error for error in answer["errors"]}
    assert abs(errors["e2e_s_mean"]["error_percent"]) < 2
    assert abs(errors["tpot_s_mean"]["error_percent"]) < 2
