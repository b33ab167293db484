"""One server whatever way asks for it: the same pool and limits for the same words of vLLM's."""

import json
import re
from dataclasses import asdict

import pytest
from refusals import refuses

import testbed as library
from testbed.core.shapes import read_model
from testbed.experiments.cli.replayed_logs import LogRequest
from testbed.experiments.cli.served_command import ServedCommand
from testbed.experiments.real.lockstep.sides import sides_of
from testbed.experiments.real.lockstep.vllm_installation import options_of
from testbed.experiments.runs.compose import configured
from testbed.experiments.vllm_server.answer import fit_of
from testbed.experiments.vllm_server.translation import expand
from testbed.memory.served import Batching
from testbed.run.build import build
from testbed.run.result import front_end
from testbed.run.served_parts import served_parameters
from testbed.vllm.releases import nearest_release, release_numbered

GPU = "gpu=h100-80gb"
SERVERS = [
    pytest.param(
        "vllm serve meta-llama/Llama-3.1-8B-Instruct",
        ("model=llama-3.1-8b",),
        id="defaults",
    ),
    pytest.param(
        "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 --max-num-seqs 64 "
        "--max-num-batched-tokens 4096 --gpu-memory-utilization 0.85",
        (
            "model=llama-3.1-70b",
            "server.num_gpus=4",
            "scheduler.max_num_seqs=64",
            "scheduler.max_num_batched_tokens=4096",
            "server.memory_utilization=0.85",
        ),
        id="limits and parallelism",
    ),
    pytest.param(
        "vllm serve google/gemma-3-27b-it --max-model-len 8192 --gpu-memory-utilization 0.95",
        (
            "model=gemma-3-27b",
            "model.max_len=8192",
            "server.memory_utilization=0.95",
        ),
        id="windows",
    ),
    pytest.param(
        "vllm serve deepseek-ai/DeepSeek-V2-Lite-Chat --max-model-len 8192",
        ("model=deepseek-v2-lite", "model.max_len=8192"),
        id="latents",
    ),
]


def server_in(config):
    """The sizes of a configuration that decide what vLLM would do."""
    setup = build(config)
    scheduler = config.scheduler.parameters
    limits = scheduler["max_num_seqs"], scheduler["max_num_batched_tokens"]
    block_size = config.policy.parameters["block_size"]
    return (asdict(setup.pool), limits, block_size, type(setup.scheduler.policy).__name__)


def with_options(words):
    """The words as options of simulate: numbers by key, and names of groups."""
    options = {}
    for key, _, value in (word.partition("=") for word in words):
        options[key] = json.loads(value) if value[0].isdigit() else value
    return options


@pytest.mark.parametrize(("command", "words"), SERVERS)
def test_every_way_builds_the_same_server(command, words, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n9,9,0,0.1,0.5\n")
    request = LogRequest("validate", [str(log), GPU], served=ServedCommand(command))
    configs = {
        "--from-vllm": configured(expand(command, [GPU])),
        "+system": configured(["+system=vllm-v1", *words, GPU]),
        "simulate(from_vllm=)": front_end().configure([GPU], {"from_vllm": command}),
        "simulate(system=)": front_end().configure(
            [], with_options([*words, GPU]) | {"system": "vllm-v1"}
        ),
        "validate": request.replayed()[1][0].config,
    }
    servers = {way: server_in(config) for way, config in configs.items()}
    assert all(server == servers["--from-vllm"] for server in servers.values()), servers


@pytest.mark.parametrize(("command", "words"), SERVERS)
def test_a_summary_has_the_two_lines_that_fits_prints(command, words):
    fit = fit_of(command, "h100-80gb")
    run = library.simulate(GPU, from_vllm=command, duration_s=1, rate=1).summary["run"]
    assert run["kv_cache_tokens"] == fit.kv_tokens
    assert run["max_concurrency"] == pytest.approx(fit.max_concurrency, abs=0.01)


@pytest.mark.parametrize(("command", "words"), SERVERS[:2])
def test_lockstep_gives_vllm_the_same_blocks(command, words):
    options = options_of(sides_of(expand(command, [GPU]), None)[1])
    assert options.num_blocks == fit_of(command, "h100-80gb").num_blocks
    assert options == options_of(sides_of(["+system=vllm-v1", *words, GPU], None)[1])


def test_capacity_looks_for_the_rate_of_the_same_server(testbed):
    words = (
        "slo.ttft_s=0.05",
        "arrivals.duration_s=3",
        "--low",
        "4",
        "--high",
        "8",
        "--precision",
        "1",
        "--seeds",
        "1",
        "--json",
    )
    command, ours = SERVERS[0].values
    by_command = testbed("capacity", "--from-vllm", command, GPU, *words)
    by_words = testbed("capacity", "+system=vllm-v1", *ours, GPU, *words)
    assert by_command[0] == by_words[0] == 0, by_command[2]
    assert by_command[1] == by_words[1]


@pytest.mark.parametrize("way", ["capacity", "hits", "validate example"])
def test_a_model_of_a_folder_is_taken_by_name_beside_a_command(testbed, tmp_path, way):
    (tmp_path / "model").mkdir()
    shape = asdict(read_model("llama-3.1-8b")) | {"name": "mine", "num_layers": 30}
    values = {key: value for key, value in shape.items() if value is not None}
    own = {"_target_": "testbed.core.specs.ModelSpec"} | values
    (tmp_path / "model" / "mine.yaml").write_text(json.dumps(own))
    short = ("--low=9", "--high=36", "--precision=3", "--seeds=1", "slo.ttft_s=0.05")
    of_ids = ("trace=guidellm", "trace.prompt_tokens=100", "trace.output_tokens=9")
    loads = {"capacity": (*short, "arrivals.duration_s=3"), "hits": (*of_ids, "--sizes=9")}
    words = (GPU, "--quiet", "--config-dir", str(tmp_path), "model=mine", *loads.get(way, ()))
    printed = testbed.done(*way.split(), "--from-vllm", "vllm serve ./mine", *words)
    assert "mine on 1 x" in printed or "of mine (" in printed


def test_a_command_in_the_wrong_place_is_answered_with_the_right_one(testbed):
    """`fits` and `mend` take a command itself, the others after an option, which is said."""
    command = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
    for name in ("run", "capacity"):
        assert "--from-vllm" in testbed.refused(name, command, GPU, "slo.ttft_s=1")
    for name in ("fits", "mend"):
        assert '"vllm serve MODEL' in testbed.refused(name, "--from-vllm", command, GPU)
    release = testbed.refused("run", "--from-vllm", command, GPU, "--release", "0.33")
    assert "release=NUMBER" in release
    several = testbed.refused("run", "--from-vllm", command, GPU, "policy.block_size=16,32")
    assert "run -m" in several


def test_the_word_for_the_newest_release_is_one_that_fits_and_run_take(testbed):
    command = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
    word = re.search(r"(\S+) is the newest", testbed.done("fits", command, GPU))[1]
    assert "no release is named" not in testbed.done("fits", command, GPU, word)
    load = ("arrivals.duration_s=1", "--quiet")
    assert testbed.done("run", "--from-vllm", command, GPU, word, *load)


HICACHE = "sglang serve --model-path Qwen/Qwen3-8B --enable-hierarchical-cache --hicache-size"


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        (("vllm serve Qwen/Qwen3-8B --kv-offloading-size 200GB", "release=0.33"), "of GiB"),
        ((f"{HICACHE} 200GB",), "of GB"),
    ],
)
def test_a_size_with_a_unit_is_refused_with_the_units_name(testbed, words, unit):
    assert unit in testbed.refused("fits", *words, GPU)


def test_a_share_may_begin_with_its_point():
    """vLLM reads `.85` as Python does."""
    blocks = [
        fit_of(f"vllm serve Qwen/Qwen3-8B --gpu-memory-utilization {share}", "h100-80gb").num_blocks
        for share in (".85", "0.85")
    ]
    assert blocks[0] == blocks[1]


def test_the_release_is_the_servers():
    later = ("+system=vllm-v1", "release=0.33")
    words = expand("vllm serve meta-llama/Llama-3.1-8B", [GPU, *later])
    fit = fit_of("vllm serve meta-llama/Llama-3.1-8B", "h100-80gb", release_numbered("0.33"))
    assert (
        server_in(configured(words))[0]
        == server_in(configured([*later, "model=llama-3.1-8b", GPU]))[0]
    )
    assert build(configured(words)).pool.num_slots == (fit.num_blocks - 1) * 16


@pytest.mark.parametrize(
    ("release", "switch", "plans_ahead"),
    [("0.19", "", True), ("0.33", "", True), ("0.33", "--no-async-scheduling", False)],
)
def test_a_manager_of_groups_knows_the_release_and_how_the_scheduler_plans(
    release, switch, plans_ahead
):
    command = f"vllm serve google/gemma-3-27b-it --max-num-batched-tokens 512 {switch}"
    config = configured(expand(command, [GPU, f"release={release}"]))
    assert served_parameters(config, "policy", {}) == {
        "release": release_numbered(release),
        "batching": Batching(512, plans_ahead),
        "states": None,
    }


@pytest.mark.parametrize(
    ("installed", "number"),
    [
        ("0.19.0", "0.19"),
        ("0.20.2", "0.20"),
        ("0.33.0", "0.33"),
        ("0.28.0", "0.28"),
        ("1.2", "0.33"),
    ],
)
def test_lockstep_takes_the_release_that_is_nearest_to_the_installed_one(installed, number):
    assert nearest_release(installed).number == number


@pytest.mark.parametrize("words", [("release=0.33",), ("policy=paged", "release=0.19")])
def test_a_release_that_no_part_follows_is_refused(words):
    refuses("nothing reads it", lambda: build(configured([*words])))


@pytest.mark.parametrize("release", ["0.20", "0.33.0"])
def test_a_release_is_text_whatever_its_digits(release):
    config = configured(["+system=vllm-v1", f"release={release}"])
    assert config.release == release
    assert config == front_end().configure([], {"system": "vllm-v1", "release": release})


def test_an_unknown_release_is_refused():
    refuses("choose from", lambda: configured(["+system=vllm-v1", "release=0.2"]))


LIMITS = (
    "server.num_blocks=9000",
    "policy.block_size=16",
    "scheduler.max_num_seqs=8",
    "scheduler.max_num_batched_tokens=2048",
)


@pytest.mark.parametrize("limits", [(), LIMITS], ids=["limits of vLLM's", "limits by hand"])
def test_a_cache_of_chunked_attention_is_refused(limits):
    words = ("+system=vllm-v1", "model=llama-4-scout-17b-16e", GPU, "server.num_gpus=8", *limits)
    refuses("model=llama-4-scout-17b-16e: .*chunked attention", configured, words)
