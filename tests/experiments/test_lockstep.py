"""vLLM's own scheduler next to ours; what needs vLLM is skipped if it is not installed."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import prod
from random import Random

import hf_configs
import pytest
from refusals import refuses

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.core.shapes import read_model
from testbed.experiments.cli.main import call
from testbed.experiments.real.lockstep.comparison import (
    ITERATION_PS,
    compare,
    report,
    shortest,
    workload,
)
from testbed.experiments.real.lockstep.draws import draw
from testbed.experiments.real.lockstep.sides import Ours, served, sides_of
from testbed.memory.offloading.request_lru import RequestLru
from testbed.run.build import build
from testbed.speculation.heads import Heads
from testbed.vllm.releases import DEFAULT, nearest_release

try:
    RELEASE = version("vllm")
except PackageNotFoundError:
    RELEASE = ""
needs_vllm = pytest.mark.skipif(
    not RELEASE, reason="vllm is not installed: pip install --no-deps vllm==0.19.0"
)
BASE = ("+system=vllm-v1", f"release={nearest_release(RELEASE or DEFAULT.number).number}")
DRAFTERS = (
    "speculation=ngram",
    "speculation=ngram_gpu",
    "speculation=heads",
    "speculation=draft_model",
)
SERVER = (
    "+system=vllm-v1",
    "scheduler=vllm_v1",
    "policy=paged",
    "policy.watermark=0",
    "policy.block_size=4",
    "server.num_blocks=9",
    "~server.kv_memory_gib",
    "scheduler.max_num_batched_tokens=16",
    "scheduler.max_num_seqs=8",
    "cost=analytic",  # quick to build; every iteration takes the same time
)


def setup_of(*overrides, requests):
    return sides_of([*SERVER, *overrides], requests)[1]


def many(count):
    random = Random(1)
    return [
        Request(i, i * 3 * ITERATION_PS, random.randint(1, 18), random.randint(1, 12))
        for i in range(count)
    ]


def test_shortest_workload_distinguishes_two_schedulers():
    """One admits with slots for the first chunk, the other only if the whole prompt would
    fit.
    """
    requests = many(20)
    words = (
        "scheduler.scheduler_reserve_full_isl=true",
        "scheduler.scheduler_reserve_full_isl=false",
    )
    configs = [setup_of(word, requests=requests).config for word in words]

    def make():
        return tuple(Ours(build(config)) for config in configs)

    sides = make()
    comparison = compare(sides, requests, ITERATION_PS)
    assert comparison.first is not None
    assert comparison.num_equal < comparison.num_iterations
    assert f"first difference: iteration {comparison.first + 1:,}" in report(sides, comparison)
    fewest = shortest(make, requests, ITERATION_PS)
    assert len(fewest) == 2  # one to fill the pool, one whose first chunk alone fits
    assert compare(make(), fewest, ITERATION_PS).first is not None
    assert len(list(workload(fewest))) == 2


def test_equal_schedulers_are_equal_to_the_end():
    requests = many(40)
    comparison = compare(
        tuple(Ours(setup_of(requests=requests)) for _ in range(2)), requests, ITERATION_PS
    )
    assert (comparison.first, comparison.num_equal) == (None, comparison.num_iterations)
    assert comparison.preemptions[0] == comparison.preemptions[1] > 0


def test_our_side_decides_what_the_simulator_does():
    """The iterations and preemptions of a whole run."""
    from testbed.cost.model import UNBOUNDED, Affine, CostModel
    from testbed.engine.simulation import simulate

    class Same(CostModel):
        def iteration(self, work):
            return ITERATION_PS

        def decode(self, work):
            return Affine(ITERATION_PS, 0, UNBOUNDED)

    requests = many(60)
    for words in ((), ("scheduler=vllm_v1_async",), ("policy=prefix_caching_v1",)):
        setup = setup_of(*words, requests=requests)
        recorder = simulate(requests, build(setup.config).scheduler, Same(), 1000)
        ours = list(Ours(setup).iterations(requests, ITERATION_PS))
        assert recorder.totals.recomputes > 0
        assert sum(len(iteration.preempted) for iteration in ours) >= recorder.totals.recomputes
        assert recorder.end_ps == ours[-1].now_ps + ITERATION_PS


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy.watermark=0.01", "policy.watermark=0.01: vLLM V1 keeps no share"),
        ("scheduler=mixed", "scheduler=MixedPrefill: is not vLLM's"),
        ("policy=prefix_caching", "policy=PrefixCaching: vLLM V1 has no such memory"),
        ("preemption=swap", "preemption=Swap: vLLM V1 recomputes"),
        ("workload.num_seqs=2", "workload.num_seqs=2: vLLM V1 schedules every sample"),
    ],
)
def test_option_without_a_counterpart_in_vllm_is_refused_by_name(override, message):
    words = [
        word for word in SERVER if override != "scheduler=mixed" or not word.startswith("scheduler")
    ]
    words = [
        word
        for word in words
        if not (override == "policy=prefix_caching" and word == "policy=paged")
    ]
    refuses(message, sides_of, [*words, "arrivals.duration_s=1", override], None)


def test_requests_that_never_fit_are_left_out():
    taken, left_out = served(setup_of(requests=[Request(0, 0, 4, 4), Request(1, 0, 40, 4)]))
    assert ([request.request_id for request in taken], left_out) == ([0], 1)


@pytest.mark.skipif(bool(RELEASE), reason="vllm is installed")
def test_without_vllm_the_command_says_what_to_install():
    with pytest.raises(InputError, match=r"vllm: "):
        call("lockstep", ["vllm", *SERVER, "server.num_blocks=400", "arrivals.duration_s=9"])


def check_every_iteration(words, requests):
    make, setup = sides_of(words, requests)
    sides = make()
    comparison = compare(sides, served(setup)[0], ITERATION_PS)
    assert comparison.first is None, "\n".join(report(sides, comparison))


@needs_vllm
@pytest.mark.parametrize("seed", range(4))
def test_every_iteration_of_a_random_configuration_equals_vllms(seed):
    check_every_iteration(*draw(Random(seed), BASE, 60))


@needs_vllm
@pytest.mark.parametrize("seed", range(4))
def test_every_iteration_with_drafts_equals_vllms(seed):
    """vLLM's scheduler and ours get the same drafts, of which the same are accepted."""
    check_every_iteration(*draw(Random(seed), BASE, 60, drafts=True))


@needs_vllm
@pytest.mark.parametrize(
    ("seed", "count"), [(2, 60), (4, 60), (5, 60), (9, 100), (19, 100), (147, 250), (501, 100)]
)
def test_every_iteration_with_windows_equals_vllms(seed, count):
    """Seed 9 has decodes behind prompts in prefill, 19 prompts whose chunks would fit, but not all
    of their windows (0.33), and 147 and 501 hits that are evicted while a prompt waits.
    """
    check_every_iteration(*draw(Random(seed), BASE, count, windows=True))


@needs_vllm
def test_what_a_request_leaves_that_preempts_itself_is_too_late_for_others():
    check_every_iteration(*draw(Random(247), BASE, 250))


@needs_vllm
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
def test_random_priorities_are_served_as_vllm_serves_them(drafts, windows):
    if drafts and windows:
        pytest.skip("drafts beside windows are not modelled")
    check_every_iteration(*draw(Random(3), BASE, 60, drafts=drafts, windows=windows, priority=True))


@needs_vllm
@pytest.mark.skipif(RELEASE < "0.33", reason="the offloading of older releases is not modelled")
@pytest.mark.parametrize("seed", [0, 1])
def test_every_step_of_a_server_that_offloads_equals_vllms(seed, capsys):
    assert call("lockstep", ["vllm", "--offload", "--random", "3", "--seed", str(seed)]) == 0
    assert "steps of 3 loads are equal" in capsys.readouterr().out


@needs_vllm
@pytest.mark.skipif(RELEASE < "0.33", reason="the offloading of older releases is not modelled")
def test_a_cache_that_forgets_whose_blocks_are_newest_differs(monkeypatch, capsys):
    monkeypatch.setattr(RequestLru, "finished", lambda *arguments: None)
    words = ["vllm", "--offload", "--random", "3", "--seed", "1", "--requests", "30"]
    assert call("lockstep", words) == 1
    assert "shortest workload that was found" in capsys.readouterr().out


@needs_vllm
@pytest.mark.slow
def test_60_random_configurations_with_windows_equal_vllms(capsys):
    words = ["vllm", *BASE, "--windows", "--random", "60", "--requests", "250", "--seed", "100"]
    assert call("lockstep", words) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "equal" in line]
    assert len(lines) == 60
    assert sum("preemptions 0 " not in line for line in lines) >= 15


@needs_vllm
@pytest.mark.slow
def test_40_random_configurations_with_drafts_equal_vllms(capsys):
    words = ["vllm", *BASE, "--drafts", "--random", "40", "--requests", "450"]
    assert call("lockstep", words) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "equal" in line]
    assert len(lines) == 40
    assert sum("preemptions 0 " not in line for line in lines) >= 25
    drawn = [draw(Random(seed), BASE, 1, drafts=True)[0] for seed in range(40)]
    assert sum("policy=paged" not in words for words in drawn) >= 20  # have a prefix cache
    for word in ("scheduler=vllm_v1_async", *DRAFTERS):
        assert sum(word in words for words in drawn) >= 8, word


@needs_vllm
@pytest.mark.slow
def test_100000_iterations_of_40_random_configurations_equal_vllms(capsys):
    assert call("lockstep", ["vllm", *BASE, "--random", "40", "--requests", "450"]) == 0
    counts = [
        int(line.partition(": ")[2].split(" of ")[0].replace(",", ""))
        for line in capsys.readouterr().out.splitlines()
        if "equal" in line
    ]
    assert len(counts) == 40
    assert sum(counts) >= 100_000


@needs_vllm
@pytest.mark.parametrize("num_drafts", [0, 1, 3])
def test_bytes_of_states_equal_vllms(num_drafts):
    """The convolution keeps a row more for each draft."""
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as Shapes

    net, hybrid = hf_configs.QWEN3_NEXT, hf_configs.NEMOTRON_H
    heads = [net[f"linear_num_{kind}_heads"] for kind in ("key", "value")]
    sizes = [net[f"linear_{kind}_head_dim"] for kind in ("key", "value")]
    kernel = net["linear_conv_kernel_dim"]
    delta = Shapes.gated_delta_net_state_shape(1, *heads, *sizes, kernel, num_drafts)
    inner = hybrid["mamba_num_heads"] * hybrid["mamba_head_dim"]
    mamba = Shapes.mamba2_state_shape(
        1,
        inner,
        hybrid["n_groups"],
        hybrid["mamba_num_heads"],
        hybrid["mamba_head_dim"],
        hybrid["ssm_state_size"],
        hybrid["conv_kernel"],
        num_drafts,
    )
    for name, shapes in (("qwen3-next-80b-a3b", delta), ("nemotron-h-8b", mamba)):
        model = read_model(name)
        deeper = Heads(num_drafts).deeper(model) if num_drafts else model
        assert deeper.states.state_bytes == 2 * sum(map(prod, shapes))


@pytest.mark.skipif(find_spec("lmcache") is None, reason="lmcache 0.5.6 is not installed")
def test_every_step_of_a_server_with_lmcache_equals_its(capsys):
    assert call("lockstep", ["vllm", "--lmcache", "--random", "2", "--requests", "20"]) == 0
    assert "steps of 2 loads are equal" in capsys.readouterr().out
