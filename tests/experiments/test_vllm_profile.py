"""A vLLM's profile from its logged iterations: planted times are found again."""

import json
from pathlib import Path

import numpy as np
import planted_vllm as planted
import pytest

from testbed.core.errors import InputError
from testbed.core.shapes import read_model
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import read_profile
from testbed.experiments.real import vllm_engine
from testbed.experiments.real.vllm_engine.calibrate_vllm import (
    lines,
    profile_of_sweeps,
    swept_machine,
    with_fit,
)
from testbed.experiments.real.vllm_engine.decode_fit import with_slow_kernels
from testbed.experiments.real.vllm_engine.forms import BY_SIZE, OF_SUMS
from testbed.experiments.real.vllm_engine.host_scale import with_launches_of
from testbed.experiments.real.vllm_engine.logged_steps import lone_prompts, read_steps
from testbed.experiments.real.vllm_engine.prompt_fit import fit_prompts
from testbed.experiments.real.vllm_engine.smooth import (
    least_absolute,
    lower_hull,
    rising,
)
from testbed.experiments.real.vllm_engine.sweep_profile import Machine, profile_of
from testbed.traces.vllm_log import VllmLog

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
def test_decodes_take_the_time_of_the_padded_batch(cost, num_seqs, mean):
    """24 decodes are padded to 32."""
    context = num_seqs * mean
    padded = next(size for size in planted.SIZES if size >= num_seqs)
    expected = planted.computing_ms((), padded, context)
    work = Work(num_seqs, context, mean)
    assert cost.iteration(work) / MS == pytest.approx(expected, rel=0.02)
    assert cost.decode(work).first_ps == cost.iteration(work)


@pytest.mark.parametrize(("past", "new"), [(0, 1000), (0, 3000), (3000, 2048), (0, 8192)])
def test_prompts_beyond_the_graphs_take_their_computing_time(cost, past, new):
    expected = planted.computing_ms(((past, new),), 0, 0)
    assert cost.iteration(Work(prefill=((new, past),))) / MS == pytest.approx(expected, rel=0.03)


def test_lengths_that_wait_for_the_host_too_do_not_move_the_line_of_the_others(tmp_path):
    """Prompts of 1,050 tokens, launched about as long as computed, end 8 ms later."""
    sweeps = planted.apart()
    for new in (1200, 1400, 2800, 1050):
        sweeps.run([(((0, new),), 0, 0), ((), 0, 0)])
    for row in sweeps.rows[-2:]:
        row[-1] += 8.0
    sweeps.write(tmp_path)
    lone = lone_prompts(read_steps(tmp_path))
    none = lone.iloc[:0]
    first_ms = planted.DECODE_LAUNCH[0]
    robust, moved = (
        fit_prompts(lone, none, first_ms, planted.LARGEST, fit).linear_ms(1500)
        for fit in (OF_SUMS.alone, BY_SIZE.alone)
    )
    expected = 5 + 1500 * planted.PER_TOKEN
    assert robust == pytest.approx(expected, rel=0.01)
    assert moved > 1.03 * expected


def test_a_prompt_among_decodes_takes_its_computing_time(cost):
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
def test_launching_prompts_takes_the_measured_time(cost, decodes, prompt_tokens, expected):
    assert cost.launch(decodes, 1, prompt_tokens).whole_ps / MS == pytest.approx(expected, rel=0.02)


def test_a_number_of_tokens_beyond_the_graphs_takes_longer_the_first_time(tmp_path, cost):
    sweeps = planted.Planted(unseen_ms=2.0)
    planted.add_apart(sweeps)
    for _ in range(3):
        planted.add_prompts_among_decodes(sweeps)
    sweeps.write(tmp_path)
    profile = profile_of(read_steps(tmp_path), MACHINE)
    assert profile["sections"]["launch_unseen"]["points"] == [[65, pytest.approx(2000, rel=0.05)]]
    costs = ProfileCost(MODEL, None, profile)
    assert costs.launch(32, 1, 700).whole_ps / MS == pytest.approx(25.0, rel=0.02)
    assert costs.launch(32, 1, 700).unseen_ps / MS == pytest.approx(2.0, rel=0.05)
    assert costs.launch(8, 1, 16).unseen_ps == 0
    assert cost.launch(32, 1, 700).unseen_ps == 0


def test_launching_decodes_takes_the_measured_times(cost):
    launch = cost.launch(8, 0, 0)
    assert launch.first_ps / MS == pytest.approx(planted.DECODE_LAUNCH[0], abs=0.1)
    assert launch.whole_ps / MS == pytest.approx(planted.DECODE_LAUNCH[1], abs=0.1)


def test_launches_grow_with_the_requests_beyond_those_that_were_logged(tmp_path):
    """Up to 33 requests were logged, and each adds 0.1 ms."""
    sweeps = planted.apart(per_request_ms=0.1)
    planted.add_prompts_among_decodes(sweeps)
    cost = ProfileCost(MODEL, None, fitted(sweeps, tmp_path))
    times = [cost.launch(seqs - 1, 1, 16).whole_ps / MS for seqs in (20, 200, 1000)]
    assert times == pytest.approx([9 + 1.9, 25 + 19.9, 25 + 99.9], rel=0.03)


def test_prompts_within_the_graphs_have_one_row_of_output_each(tmp_path, monkeypatch):
    """A row takes 0.02 ms, and decodes have one for each token."""
    as_decodes = planted.computing_ms

    def computing_ms(prompts, decodes, context):
        new = sum(new for _, new in prompts)
        is_within = prompts and new + decodes <= planted.LARGEST
        without_rows = new - len(prompts) if is_within else 0
        return as_decodes(prompts, decodes, context) - 0.02 * without_rows

    monkeypatch.setattr(planted, "computing_ms", computing_ms)
    sweeps = planted.apart()
    for _ in range(2):
        planted.add_prompts_among_decodes(sweeps, new=(24, 56, 700))
    cost = ProfileCost(MODEL, None, fitted(sweeps, tmp_path))
    expected = computing_ms(((0, 56),), 8, 8 * 100)
    assert cost.iteration(Work(8, 800, 100, prefill=((56, 0),))) / MS == pytest.approx(
        expected, rel=0.02
    )
    assert cost.iteration(Work(64, 6400, 100)) / MS == pytest.approx(
        as_decodes((), 64, 6400), rel=0.02
    )


def test_decodes_take_longer_beside_prompts_beyond_the_graphs(tmp_path, monkeypatch):
    """Each takes 0.05 ms more there; and the GPU has the first of prompts 1 ms later."""
    alone, launched = planted.computing_ms, planted.launch

    def computing_ms(prompts, decodes, context):
        tokens = decodes + sum(new for _, new in prompts)
        is_beyond = prompts and tokens > planted.LARGEST
        return alone(prompts, decodes, context) + (0.05 * decodes if is_beyond else 0)

    def launch(prompts, decodes):
        first, whole = launched(prompts, decodes)
        return first + (1.0 if prompts else 0.0), whole

    monkeypatch.setattr(planted, "computing_ms", computing_ms)
    monkeypatch.setattr(planted, "launch", launch)
    sweeps = planted.apart()
    planted.add_prompts_among_decodes(sweeps, new=(16, 700, 3000, 4000, 5000))
    cost = ProfileCost(MODEL, None, fitted(sweeps, tmp_path))
    work = Work(200, 200 * 100, 100, prefill=((3500, 0),))
    expected = computing_ms(((0, 3500),), 200, 200 * 100)
    assert cost.iteration(work) / MS == pytest.approx(expected, rel=0.01)
    assert cost.launch(8, 1, 3000).first_ps / MS == pytest.approx(2.5, abs=0.2)


def test_a_slow_hosts_decodes_take_the_time_of_their_padded_batch():
    """Results of prompts were read so late on this host that the GPU's time does not show."""
    folder = KEPT / "h100-llama-3.1-8b-other-host" / "sweeps"
    profile = profile_of(*swept_machine([folder], MODEL))
    cost = ProfileCost(MODEL, None, profile)
    sizes = profile["cuda_graph_sizes"]
    for num_seqs in range(1, 513, 7):
        padded = next(size for size in sizes if size >= num_seqs)
        one, other = (cost.iteration(Work(seqs, 512, 1)) / MS for seqs in (num_seqs, padded))
        assert 6 < one < 22
        assert one == pytest.approx(other, rel=0.01)
        assert cost.launch(num_seqs, 0, 0).whole_ps > 0


def test_the_errors_of_prompts_among_decodes_are_small(steps):
    assert with_fit(steps, MACHINE)["fit"]["p95_error"] < 0.03


def test_without_prompts_among_decodes_launches_are_scaled_from_another_host(tmp_path, steps):
    """The other host launches in half the time, and so its decodes are launched in half."""
    lone = fitted(planted.apart(), tmp_path)
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


def fitted(sweeps, folder):
    sweeps.write(folder)
    return profile_of(read_steps(folder), MACHINE)


def launched_ms(profile, requests):
    """Of a prompt of 700 tokens among decodes."""
    launch = ProfileCost(MODEL, None, profile).launch(requests - 1, 1, 700)
    return launch.whole_ps / MS


def test_launches_grow_as_prompts_behind_prompts_show(tmp_path, other_host):
    """The other host's do not, so neither do these beyond the most requests of a pool."""
    own = planted.apart(per_request_ms=1.0)
    for num_prompts in (2, 4, 8):
        planted.add_prompts_behind_prompts(own, 16, num_prompts, times=4)
    profile = with_launches_of(fitted(own, tmp_path), other_host)
    times = [launched_ms(profile, requests) for requests in (1, 2, 4, 8, 100)]
    assert times == pytest.approx([25, 26, 28, 32, 32], rel=0.01)


@pytest.mark.parametrize(
    ("before", "times"),
    [
        pytest.param(16, 3, id="too few"),
        pytest.param(1200, 4, id="the iteration before is computed longer than their launch"),
        pytest.param(8000, 4, id="it is computed longer than any launch"),
    ],
)
def test_launches_that_are_not_seen_often_are_another_hosts(tmp_path, other_host, before, times):
    own = planted.apart(per_request_ms=2.0)
    planted.add_prompts_behind_prompts(own, before, 8, times)
    profile = with_launches_of(fitted(own, tmp_path), other_host)
    assert launched_ms(profile, 8) == pytest.approx(25, rel=0.01)


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
    with pytest.raises(InputError, match=r"the sweeps: "):
        with_launches_of(lone, other)


def test_sweeps_that_the_time_limit_left_out_are_named_in_the_profile(tmp_path):
    planted.sweeps().write(tmp_path)
    facts = {"async_scheduling": True, "tensor_parallel_size": 1, "graph_sizes": planted.SIZES}
    about = {"vllm": "0.20.2", "device": "a device", "host": "a host", "torch": "2"}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    (tmp_path / "machine.json").write_text(json.dumps(about))
    whole = profile_of_sweeps([tmp_path], MODEL)
    assert "sweeps_left_out" not in whole["fingerprint"]
    waves = "name,started_s,ended_s\nwarm-up,0,0.1\nprompts,0.1,9\ndecodes at 128,,\n"
    (tmp_path / "waves.csv").write_text(waves)
    cut = profile_of_sweeps([tmp_path], MODEL)
    assert cut["fingerprint"]["sweeps_left_out"] == ["decodes at 128"]
    assert any("out of time before these sweeps" in line for line in lines(cut))


def test_too_few_kinds_of_prompts_are_refused(tmp_path):
    only = planted.Planted()
    for count in (1, 8):
        for mean in (100, 1000):
            only.run([((), count, count * (mean + step)) for step in range(12)])
    only.run([(((0, 4000),), 0, 0), ((), 0, 0)])
    only.write(tmp_path)
    with pytest.raises(InputError, match="the logged prompts: "):
        profile_of(read_steps(tmp_path), MACHINE)


def test_a_folder_without_iterations_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"steps\.csv"):
        read_steps(tmp_path)
    (tmp_path / "steps.csv").write_text("schedule_start_s,result_s\n1,2\n")
    with pytest.raises(InputError, match=r"steps\.csv: "):
        read_steps(tmp_path)


def test_what_only_warms_up_is_left_out(tmp_path):
    planted.sweeps().write(tmp_path)
    count = len(read_steps(tmp_path))
    (tmp_path / "waves.csv").write_text("name,started_s,ended_s\nwarm-up,0,0.2\n")
    assert 0 < len(read_steps(tmp_path)) < count


def test_one_outlier_makes_no_kink():
    assert rising([1.0, 2.0, 9.0, 3.0, 4.0]).tolist() == [1.0, 2.0, 3.0, 4.0, 4.0]
    assert rising([1.0, 2.0, 3.0, 4.0]).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_size_that_is_slower_than_the_next_one_has_slow_kernels():
    assert with_slow_kernels([1.0, 2.0, 5.0, 3.0, 4.0]).tolist() == [1.0, 2.0, 5.0, 3.0, 4.0]
    assert with_slow_kernels([1.0, 2.0, 3.1, 3.0, 4.0]).tolist() == [1.0, 2.0, 3.0, 3.1, 4.0]


def test_times_of_terms_are_those_of_most_sums_and_never_negative():
    terms = np.array([[1.0, n] for n in range(1, 10)])
    times = terms @ [3.0, 0.5]
    times[4] *= 3  # a pause
    assert least_absolute(terms, times) == pytest.approx([3.0, 0.5], rel=1e-3)
    falling = terms @ [3.0, -0.1]
    assert least_absolute(terms, falling).min() == 0


def test_the_hull_is_below_and_convex():
    points = {1: 6.0, 2: 6.5, 4: 6.2, 8: 7.5, 16: 8.0, 32: 20.0}
    hull = lower_hull(points)
    assert all(hull[x] <= points[x] for x in points)
    assert hull == pytest.approx({1: 6.0, 2: 6 + 0.2 / 3, 4: 6.2, 8: 6.8, 16: 8.0, 32: 20.0})


def test_results_are_handed_out_before_the_next_plan(tmp_path):
    """The host's time too: 0.05 ms for each of up to 32 decodes."""
    planted.sweeps(handing_out_ms=0.05).write(tmp_path)
    fit = with_fit(read_steps(tmp_path), MACHINE)["fit"]
    assert fit["p95_error"] < 0.02
    assert abs(fit["mean_error"]) < 0.01


def test_prompts_behind_others_that_are_launched_longer_are_no_time_of_the_gpu(tmp_path):
    """An iteration behind 1,400 tokens, which are launched as long as they are computed, ends when
    the host is done. Its time says nothing of what it computes.
    """
    sweeps = planted.sweeps()
    for _ in range(60):  # most lone prompts are launched in 9 ms
        sweeps.run([(((0, 16),), 0, 0), ((), 0, 0)])
    for num_prompts in (4, 5, 6, 7):
        planted.add_prompts_behind_prompts(sweeps, before=600, num_prompts=num_prompts, times=4)
    sweeps.write(tmp_path)
    profile = profile_of(read_steps(tmp_path), MACHINE)
    cost = ProfileCost(MODEL, None, profile)
    for new in (2000, 6000):
        prompts = ((new, 0),)
        expected = planted.computing_ms(((0, new),), 0, 0)
        assert cost.iteration(Work(prefill=prompts)) / MS == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "opt-13b", "qwen2.5-7b"])
def test_the_profiles_that_ship_are_those_of_the_kept_sweeps(name):
    shipped = read_profile(f"vllm-0.20/h100-{name}-tp1")
    refitted = profile_of_sweeps([KEPT / f"h100-{name}" / "sweeps"], read_model(name), form=BY_SIZE)
    assert refitted["sections"] == shipped["sections"]
    assert refitted["fit"] == shipped["fit"]


@pytest.mark.parametrize(
    "log",
    [
        "h100-llama-3.1-8b/2000-blocks-16.7",
        "h100-qwen2.5-7b/1500-blocks-9.3",
        "h100-qwen2.5-7b/1800-blocks-11.3",
    ],
)
def test_predictions_that_were_kept_before_the_logs_were_read_are_within_5_percent(log):
    predicted = json.loads((KEPT / log / "predicted.json").read_text())
    served = VllmLog(str(KEPT / log / "requests.jsonl.gz"))
    assert predicted["requests"]["finished"] == len(served.times.e2e_s)
    measured = served.times.e2e_s.mean()
    assert predicted["e2e_s"]["mean"] == pytest.approx(measured, rel=0.05)


def errors_of(testbed, log, *words):
    """The errors in percent of a kept log's simulation, by metric."""
    log_file = KEPT / log / "requests.jsonl.gz"
    limits = ("scheduler.max_num_seqs=1024", "scheduler.max_num_batched_tokens=8192")
    costs = ("+system=vllm-v1", "server=h100-80gb", "cost=profile")
    answer = json.loads(testbed.done("validate", str(log_file), *costs, *limits, *words, "--json"))
    return {error["metric"]: error["error_percent"] for error in answer["errors"]}


def test_a_workload_is_predicted_within_2_percent_by_the_sweeps_beside_it(testbed):
    log = "h100-qwen2.5-7b/1800-blocks-11.3"
    fit = ("calibrate", "fit", "steps", str(KEPT / log / "sweeps"), "--model", "qwen2.5-7b")
    testbed.done(*fit, "--out", "own.json")
    errors = errors_of(testbed, log, "cost.path=own.json")
    assert abs(errors["e2e_s_mean"]) < 2
    assert abs(errors["tpot_s_mean"]) < 2
    assert abs(errors["ttft_s_mean"]) < 10


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
    memory = ("policy=paged", "policy.block_size=16", "policy.watermark=0")
    errors = errors_of(testbed, log, *memory, f"cost.path=vllm-0.20/h100-{name}-tp1")
    assert abs(errors["e2e_s_mean"]) < 2
    assert abs(errors["tpot_s_mean"]) < 2
