"""The options of vLLM's server, the memory that it takes, and which servers do not start."""

import csv
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from math import sqrt
from pathlib import Path
from statistics import mean, median

import pytest
from refusals import check_words, refuses

import testbed as testbed_library
from testbed.core.errors import DoesNotStart, InputError
from testbed.core.layers import Latent, States
from testbed.core.specs import GIB, ModelSpec
from testbed.experiments.real.lockstep.vllm_installation import installed_release
from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.vllm_server.answer import fit_of, lines_of
from testbed.experiments.vllm_server.memory_fit import errors_by_shape, fitted_terms, predicted
from testbed.experiments.vllm_server.named import gpu_named, model_named
from testbed.experiments.vllm_server.named_server import server_of
from testbed.experiments.vllm_server.startup_logs import start_ups_of
from testbed.experiments.vllm_server.translation import overrides_of
from testbed.speculation.heads import Heads
from testbed.vllm.command import read_command
from testbed.vllm.memory import terms
from testbed.vllm.option_table import (
    UNDERSTOOD,
    option_named,
    options,
    parsers,
    refused_by_parser,
)
from testbed.vllm.pages import pages_of
from testbed.vllm.releases import nearest_release, release_numbered
from testbed.vllm.server import Checkpoint, server_with

SHARED = Path(os.environ.get("TESTBED_SHARED", Path(__file__).parents[3] / "shared"))
KEY = SHARED / "data" / "vllm_pools" / "startups.csv"
LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
WITHOUT_IMAGES = "--language-model-only"


LOG = """vllm serve meta-llama/Llama-3.1-8B --max-num-seqs {seqs} --max-num-batched-tokens 2048
DEBUG 11-26 [gpu_worker.py:439] Memory profiling takes 9.50 seconds. Total non KV cache memory: \
17.2GiB; torch peak memory increase: {peak}GiB; non-torch forward increase memory: 0.3GiB; \
weights memory: 14.99GiB.
INFO 11-26 [gpu_worker.py:440] Available KV cache memory: 54.1 GiB
INFO 11-26 [kv_cache_utils.py:1319] GPU KV cache size: 443,184 tokens
"""


@pytest.fixture(scope="module")
def start_ups():
    """The logged start-ups of the answer key."""
    if not KEY.is_file():
        pytest.skip("the logged start-ups are not on this machine")
    return start_ups_of(KEY.parent, "h100-80gb")


@pytest.mark.parametrize("release", parsers())
def test_every_option_of_a_release_has_a_class(release):
    assert parsers()[release].keys() <= set(options())


@pytest.mark.parametrize("release", parsers())
def test_a_neutral_value_is_one_that_the_parser_takes(release):
    for option in map(options().get, parsers()[release]):
        for value in option.neutral:
            assert not refused_by_parser(release, option, value)


PARSERS = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.openai.cli_args")


def test_the_parser_of_the_installed_release_has_no_other_option(monkeypatch):
    pytest.importorskip("vllm")
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    if not current_platform.device_type:  # a machine without a GPU
        monkeypatch.setattr(type(current_platform), "device_type", "cpu")
    module = next(module for module in map(_imported, PARSERS) if module)
    parser = module.make_arg_parser(FlexibleArgumentParser())
    release = nearest_release(installed_release())
    words = {word for action in parser._actions for word in action.option_strings}
    for word in words - {"-h", "--help"}:
        option_named(word, "installed")
    for action in parser._actions:
        for word in action.option_strings:
            if word.startswith("--") and not word.startswith("--no-") and word != "--help":
                option = option_named(word, "installed")[0]
                assert option.takes_several == (action.nargs == "+")
                for choice in (action.choices or ()) if option.kind != UNDERSTOOD else ():
                    assert not refused_by_parser(release.number, option, str(choice))


def _imported(name):
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


def test_each_shape_is_predicted_by_a_fit_without_it(start_ups):
    errors = dict[str, list[float]]()
    for logged in start_ups:
        others = [other for other in start_ups if other.model.name != logged.model.name]
        difference = abs(predicted(logged, fitted_terms(others)).kv_cache - logged.kv_cache)
        is_dense = logged.model.experts is None and logged.model.window is None
        assert difference <= max(0.25, (0.04 if is_dense else 0.06) * logged.kv_cache)
        errors.setdefault(logged.model.name, []).append(difference / logged.kv_cache)
    assert median(median(values) for values in errors.values()) <= 0.01


def test_the_terms_of_vllms_code_are_near_those_of_the_logged_start_ups(start_ups):
    """The code's copies of logits are what a fit finds; the residual over shapes ships."""
    assert fitted_terms(start_ups).logits == pytest.approx(terms().logits, abs=0.05)
    errors = defaultdict(list)
    for row in start_ups:
        errors[row.model.name].append(predicted(row, terms()).activation - row.activation)
    residual = sqrt(mean(mean(shape) ** 2 for shape in errors.values()))
    assert residual == pytest.approx(terms().rmse_gib, abs=1e-4)


def test_the_pool_of_every_logged_shape_is_within_one_percent(start_ups):
    """Of a fit without it, and of the shipped terms, which are fitted to none."""
    left_out = sorted(abs(shape.left_out) for shape in errors_by_shape(start_ups))
    assert median(left_out) < 0.002
    assert left_out[-1] < 0.01
    for row in start_ups:
        assert predicted(row, terms()).kv_cache == pytest.approx(row.kv_cache, rel=0.01)


@pytest.mark.parametrize(("tokens", "peak"), [(2048, 1.84), (8192, 1.89), (16384, 1.95)])
def test_start_ups_of_another_release_have_the_peak_of_the_code(tokens, peak):
    """vLLM 0.20.2, Llama-3.1-8B, as logged: start_ups/measured.csv."""
    fit = fit_of(f"{LLAMA} --max-num-seqs 1024 --max-num-batched-tokens {tokens}", "h100-80gb")
    assert fit.activation_gib == pytest.approx(peak, abs=0.006)
    assert fit.weights_gib == pytest.approx(14.99, abs=0.006)


def test_tokens_follow_from_the_logged_bytes_to_the_logs_rounding(start_ups):
    for logged in start_ups:
        block_size = 64 if logged.model.latent else 16
        pages = pages_of(logged.model, logged.limits.num_gpus, block_size)
        low, high = (
            pages.num_tokens(int((logged.kv_cache + rounding) * GIB) // pages.page_bytes)
            for rounding in (-0.005, 0.005)
        )
        assert low - block_size <= logged.tokens <= high + block_size


def test_terms_are_fitted_to_a_folder_of_logs_and_read_again(testbed, tmp_path):
    for seqs, peak in ((256, 0.49), (512, 0.95), (1024, 1.87)):
        text = LOG.format(seqs=seqs, peak=peak)
        (tmp_path / f"{seqs}.log").write_text(text)
    code, output, errors = testbed("calibrate", "fit", "memory", ".", "--out", "mine.toml")
    assert code == 0, errors
    check_words(("3 start-ups on h100-80gb", "too few shapes"), output)
    command = f"{LLAMA} --max-num-batched-tokens 2048"
    words = ("fits", command, "gpu=h100-80gb", "--terms", "mine.toml", "--json")
    assert json.loads(testbed(*words)[1])["activation_gib"] == pytest.approx(1.87, abs=0.02)


def test_a_log_without_the_profiling_run_is_refused(testbed, tmp_path):
    (tmp_path / "short.log").write_text("vllm serve meta-llama/Llama-3.1-8B\n")
    error = testbed.refused("calibrate", "fit", "memory", str(tmp_path))
    check_words(("short.log", "Memory profiling", "VLLM_LOGGING_LEVEL=DEBUG"), error)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        pytest.param("-dp 2 -dpr 1", ("fleet",), id="a part of the replicas"),
        pytest.param("--enable-lora", ("adapters",), id="adapters"),
        pytest.param(
            "--kv-offloading-size 8", ("--kv-offloading-size 8", "release=0.33"), id="offloading"
        ),
        pytest.param("--cpu-offload-gb 10", ("weights outside",), id="offloaded weights"),
        pytest.param("--scheduling-policy lottery", ("fcfs, priority",), id="another order"),
        pytest.param("--enforce-eager", ("without CUDA graphs",), id="eager"),
        pytest.param(
            "--speculative-config.method ngram", ("num_speculative_tokens",), id="a dotted key"
        ),
        pytest.param("--enforce-eager.x 1", ("takes no value",), id="a key of a switch"),
        pytest.param("--speculative-config.method", ("has no value",), id="a key alone"),
        pytest.param(
            """--limit-mm-per-prompt '{"image":0}'""", ("(--language-model-only in its",), id="0"
        ),
        pytest.param("""--limit-mm-per-prompt '{"image":2}'""", ("(leave it out",), id="2"),
        pytest.param("-O3", ("compiled code",), id="a level in a short form"),
        pytest.param(
            "--max-num-sequences 8", ("no option", "did you mean --max-num-seqs"), id="a typo"
        ),
        pytest.param("--port=", ("has no value",), id="an empty value"),
    ],
)
def test_what_changes_the_answer_or_is_no_option_is_refused(testbed, options, parts):
    error = testbed.refused("run", "--from-vllm", f"{LLAMA} {options}", "gpu=h100-80gb")
    check_words(("vllm serve", *parts), error)


def test_a_server_by_priority_serves_in_that_order(testbed, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,input_tokens,output_tokens,priority\n0,9,30,1\n0,9,30,0\n0,9,20,-1\n"
    )
    words = ("trace=csv", f"trace.path={trace}", "arrivals=replay", "gpu=h100-80gb")
    command = f"{LLAMA} --scheduling-policy priority --max-num-seqs 1"
    code, _, notes = testbed("run", "--from-vllm", command, *words, "hydra.run.dir=out")
    assert (code, "order=priority" in notes) == (0, True)
    rows = list(csv.DictReader((tmp_path / "out" / "requests.csv").open()))
    ends = {row["request_id"]: float(row["finish_s"]) for row in rows}
    assert ends["2"] < ends["1"]


def test_dense_replicas_are_engines_behind_vllms_balancer():
    command, newer = read_command(f"{LLAMA} -dp 2"), "router.weighs_usage=true"
    for release in ("0.19", "0.33"):
        server = server_of(command, "h100-80gb", release=release_numbered(release))
        words = overrides_of(server, command)
        assert {"replicas=2", "router=vllm_balancer"} <= set(words)
        assert (newer in words) == (release == "0.33")


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        pytest.param(
            "vllm serve meta-llama/Llama-3.1-70B", ("no available memory", "4 starts"), id="weights"
        ),
        pytest.param(f"{LLAMA} -tp 3", ("divisible by tensor parallel size",), id="heads"),
        pytest.param(
            f"{LLAMA} --max-model-len 131073", ("longer than the model's 131,072",), id="positions"
        ),
        pytest.param(
            f"{LLAMA} --kv-cache-memory-bytes 8G", ("larger than the available",), id="one sequence"
        ),
        pytest.param(
            f"{LLAMA} --max-num-batched-tokens 64 --max-num-seqs 65", ("below",), id="the budget"
        ),
        pytest.param(
            f"{LLAMA} --no-enable-chunked-prefill --max-num-batched-tokens 4096",
            ("chunked prefill is off",),
            id="whole prompts",
        ),
        pytest.param(f"{LLAMA} --max-num-partial-prefills 2", ("at once",), id="prefills"),
        pytest.param(
            f"{LLAMA} --block-size 5 --kv-cache-dtype fp8", ("multiples of 16",), id="a block"
        ),
    ],
)
def test_servers_that_vllm_refuses_do_not_start(command, parts):
    with pytest.raises(DoesNotStart) as refusal:
        fit_of(command, "h100-80gb")
    check_words(parts, str(refusal.value))


@pytest.mark.parametrize(
    "command",
    [
        f"CUDA_VISIBLE_DEVICES=0 {LLAMA}",
        f"python3 -m vllm.entrypoints.openai.api_server --model={LLAMA.split()[-1]}",
        f"args: [--model, {LLAMA.split()[-1]}]",
        f"{LLAMA} -tp=1 -pp 1 -dp 1 --scheduling-policy fcfs",
        f"{LLAMA} --max_model_len auto",
    ],
)
def test_every_form_of_a_command_is_the_same_server(command):
    plain, other = fit_of(LLAMA, "h100-80gb"), fit_of(command, "h100-80gb")
    assert replace(other, notes=()) == replace(plain, notes=())


def test_options_of_a_file_come_before_those_of_the_command(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("max-num-seqs: 8\nmax-model-len: 4096\nenable-prefix-caching: false\n")
    values = read_command(f"{LLAMA} --config {path} --max-num-seqs 9").values
    assert values["--max-num-seqs"] == "9"
    assert values["--max-model-len"] == "4096"
    assert values["--enable-prefix-caching"] == "false"


def test_a_model_may_be_a_folder_or_in_the_local_cache(tmp_path, monkeypatch):
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    }
    folder = tmp_path / "hub" / "models--some--thing" / "snapshots" / "1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in (str(folder), "some/thing"):
        assert fit_of(f"vllm serve {name}", "l4").max_model_len == 2048


def test_fits_gives_the_two_lines_of_vllm(testbed):
    code, out, _ = testbed("fits", LLAMA, "gpu=h100-80gb", "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["kv_tokens"] == answer["num_blocks"] * 16
    assert answer["max_concurrency"] == pytest.approx(answer["kv_tokens"] / 131_072, rel=1e-3)


@pytest.mark.parametrize("release", ["0.19", "0.33"])
@pytest.mark.parametrize(
    "words", ["", "--enable-lora", "-tp 2 -pp 2", "--gpu-memory-utilization 0.8"]
)
def test_the_rows_of_the_memory_add_up_to_the_pool(release, words):
    """The usable memory less all other rows, but for a block and the rounding of each row."""
    fit = fit_of(f"{LLAMA} --max-model-len 16384 {words}", "h100-80gb", release_numbered(release))
    rows = dict(re.findall(r"^  (\S.*?) {2,}(\d+\.\d\d)$", "\n".join(lines_of(fit)), re.MULTILINE))
    names = list(rows)
    assert names[1] == f"usable (gpu_memory_utilization {fit.gpu_memory_utilization:g})"
    usable, *taken, pool = map(float, list(rows.values())[1:])
    assert usable - sum(taken) == pytest.approx(pool, abs=0.01 * len(names))


def test_a_given_pool_has_no_share_of_the_memory():
    fit = fit_of(f"{LLAMA} --num-gpu-blocks-override 2000", "h100-80gb")
    assert not [line for line in lines_of(fit) if "usable" in line]


@pytest.mark.parametrize(("model", "gib"), [("google/gemma-3-27b-it", 0.79), (LLAMA.split()[2], 0)])
def test_the_weights_of_an_encoder_of_images_are_shown(model, gib):
    """Those that --language-model-only does not load."""
    command = f"vllm serve {model} --max-model-len 8192"
    fit, alone = (fit_of(words, "h100-80gb") for words in (command, f"{command} {WITHOUT_IMAGES}"))
    assert fit.encoder_gib == pytest.approx(gib, abs=0.005)
    assert fit.encoder_gib == pytest.approx(fit.weights_gib - alone.weights_gib)
    assert any("encoder" in line for line in lines_of(fit)) == (gib > 0)
    assert alone.encoder_gib == 0


def test_blocks_that_are_given_are_the_pool(testbed, tmp_path):
    code, _, notes = testbed(
        "run",
        "--from-vllm",
        f"{LLAMA} --num-gpu-blocks-override 2000",
        "gpu=h100-80gb",
        "arrivals.duration_s=1",
        "hydra.run.dir=out",
    )
    assert code == 0, notes
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["run"]["pool_blocks"] == 1999


@pytest.mark.parametrize(
    ("pool", "num_gpus"),
    [("--num-gpu-blocks-override 3000", 2), ("--kv-cache-memory-bytes 15G", 4)],
)
def test_a_given_pool_needs_room_beside_the_weights(pool, num_gpus):
    """Of 131.4 GiB of weights each GPU of 79.15 has its share; blocks are shared too, bytes are
    those of each.
    """
    command = f"vllm serve meta-llama/Llama-3.1-70B-Instruct --max-model-len 4096 {pool}"
    refuses(f"--tensor-parallel-size {num_gpus}", fit_of, command, "a100-80gb")
    fit = fit_of(f"{command} -tp {num_gpus}", "a100-80gb")
    assert fit.smallest_tensor_parallel == num_gpus


def test_one_sequence_fits_into_what_a_release_counts():
    """Of 3,000 blocks, 0.33 counts all but its null block, and 0.19 what profiling finds."""
    command = f"{LLAMA} --num-gpu-blocks-override 3000"
    newer = release_numbered("0.33")
    refuses("47984 or less starts", fit_of, command, "h100-80gb", newer)
    assert fit_of(f"{command} --max-model-len 47984", "h100-80gb", newer).max_model_len == 47_984
    found = fit_of(f"{LLAMA} --max-model-len auto", "l4").max_model_len
    assert found < 48_000
    assert fit_of(f"{command} --max-model-len auto", "l4").max_model_len == found


def test_six_start_ups_are_within_two_percent_of_what_was_predicted():
    folder = CONF.parent / "vllm_server" / "start_ups"
    predictions, logs = (
        list(csv.DictReader((folder / name).open(encoding="utf-8")))
        for name in ("predicted.csv", "measured.csv")
    )
    for prediction, logged in zip(predictions, logs, strict=True):
        assert prediction["max_num_batched_tokens"] == logged["max_num_batched_tokens"]
        error = int(prediction["predicted_tokens"]) / int(logged["logged_tokens"]) - 1
        assert abs(error) < 0.02


# What GLM-5.3-Flash stores, as public pages about it and vLLM 0.33's code for it have it: 34 layers
# of Kimi delta attention, whose state has 32 bits, and 11 of latents without a part with position,
# whose indexer has a key of 132 bytes for every four tokens.
KDA_ROW = 3 * 64 * 128 * 2
GLM = ModelSpec(
    "glm-5.3-flash",
    45,
    4096,
    64,
    64,
    256,
    12_288,
    3,
    154_880,
    1 << 20,
    latent=Latent(
        kv_rank=512, rope_size=0, v_size=256, q_rank=1536, index_bytes=132 // 4, index_pool=4
    ),
    states=States(34, 64 * 128 * 128 * 4 + 3 * KDA_ROW, draft_bytes=KDA_ROW),
)


def test_states_of_drafts_take_pages_of_each_sequence():
    """A block has 1,152 tokens of 12 layers, and 14,611,968 bytes. A request of 32,768 tokens has
    29 of them for its tokens, one for keys that are not pooled yet, and 2 + 3 for each of three
    groups of states, of which those of three drafts are 9. Of 873 blocks: 635,699 tokens and
    19.40x.
    """
    command = read_command(
        "vllm serve zai-org/GLM-5.3-Flash -tp 4 --max-num-seqs 8 --max-model-len 32768 "
        f"--num-gpu-blocks-override 873 {MTP}"
    )
    gpu, release = gpu_named("h100-80gb"), release_numbered("0.33")
    server = server_with(command, Checkpoint(GLM), gpu, release, speculation=Heads(3))
    pages = server.pages
    assert (pages.block_size, pages.page_bytes) == (1152, 14_611_968)
    assert (pages.of_sequence(32_768), pages.draft_pages * pages.windows.count(0)) == (45, 9)
    concurrency = pages.concurrency(873, 32_768)
    assert int(concurrency * 32_768) == 635_699
    assert concurrency == pytest.approx(19.40)


MTP = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'"""
NEXT_80B = "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --max-model-len 32768"


@pytest.mark.parametrize(
    ("num_gpus", "options", "expected"),
    [
        (1, "", (13_369_344, 2243, 64)),
        (1, MTP, (14_909_440, 2012, 71)),
        (4, MTP, (3_833_856, 7825, 126)),
    ],
)
def test_heads_of_a_hybrid_model_share_its_pages(num_gpus, options, expected):
    """vLLM 0.19 computes these from the same layers (test_lockstep.py compares them)."""
    text = f"{NEXT_80B} -tp {num_gpus} --kv-cache-memory-bytes 30000000000 {options}"
    server = server_of(read_command(text), "b300")  # whose one GPU has room for the weights
    pages = server.pages
    assert (pages.page_bytes, server.pool.num_blocks, pages.of_sequence(32_768)) == expected


def test_fits_imports_neither_numpy_nor_pandas():
    code = (
        "import sys; from testbed.experiments.cli.main import call; "
        f"call('fits', ['{LLAMA}', 'gpu=h100-80gb']); "
        "assert not {'numpy', 'pandas', 'hydra'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_gemma_by_a_command_is_the_manager_of_groups_by_hand():
    command = "vllm serve google/gemma-3-27b-it --max-model-len 8192 --gpu-memory-utilization 0.95"
    lengths = {"trace.input_len": 512, "trace.output_len": 128, "trace.input_ratio": 0.5}
    load = {"trace": "random", **lengths, "duration_s": 1, "rate": 150, "gpu": "h100-80gb"}
    by_command = testbed_library.simulate(from_vllm=command, **load).summary
    pool = 16_010 * 10 * 16 * 2 * 16 * 128 * 2 * 2**-30  # pages of 10 layers, 16 tokens
    by_hand = testbed_library.simulate(
        f"server.kv_memory_gib={{gemma-3-27b: {pool + 1e-3}}}",
        model="gemma-3-27b",
        system="vllm-v1",
        policy="grouped_caching_v1",
        **{
            "policy.watermark": 0,
            "model.max_len": 8192,
            "max_len": 8192,
            "null_blocks": 0,
        },
        **load,
    ).summary
    assert by_command["run"]["pool_slots"] // (10 * 16) == 16_010
    assert by_command["counters"]["evictions"] > 0
    assert by_command["preemptions"]["recompute"] > 0
    for key in ("counters", "preemptions", "ttft_s"):
        assert by_command[key] == by_hand[key]
    assert by_command["run"]["kv_cache_tokens"] == by_hand["run"]["kv_cache_tokens"]


@pytest.mark.parametrize(
    ("command", "logged_tokens"),
    [("google/gemma-3-12b-it", 130_304), ("google/gemma-3-27b-it", 36_560)],
)
def test_gemmas_tokens_are_those_of_its_logs(command, logged_tokens):
    words = f"vllm serve {command} --max-model-len 8192 --gpu-memory-utilization 0.95"
    assert fit_of(words, "h100-80gb").kv_tokens == pytest.approx(logged_tokens, rel=0.04)


def test_a_folder_without_a_config_is_no_name_of_a_model(tmp_path):
    with pytest.raises(InputError) as refusal:
        model_named(str(tmp_path))
    assert "config.json" in refusal.value.problem
