"""`--from-sglang`: what a command of SGLang's server is as overrides, and what it refuses."""

import json
from importlib.util import find_spec

import pytest
from refusals import check_refusal, refuses, says_no_start

from testbed.api import simulate
from testbed.core.errors import DoesNotStart, InputError
from testbed.core.shapes import read_model
from testbed.core.specs import GIB
from testbed.experiments.cli.fits import fits
from testbed.experiments.cli.hits import hits
from testbed.experiments.cli.plan import Written, plan
from testbed.experiments.cli.served_command import ServedCommand
from testbed.experiments.plan.space import candidate_of, deployments
from testbed.experiments.real.lockstep.config_variations import QUANTIZED
from testbed.experiments.real.lockstep.model_configs import config_of
from testbed.experiments.sglang_server.answer import fit_of
from testbed.experiments.sglang_server.translation import expand
from testbed.experiments.vllm_server.named import gpu_named
from testbed.experiments.vllm_server.translation import expand as of_vllm
from testbed.run.result import front_end
from testbed.sglang.command import PARSER, parser_options, read_command
from testbed.sglang.memory import Graphs, Limits, ServerMemory, size_of, static_fraction
from testbed.sglang.option_table import reasons, understood
from testbed.sglang.server import running_requests
from testbed.sglang.server_words import FLAGS, OVERRIDES
from testbed.sglang.window_pools import CellBytes, OnePool

MODEL = "sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct"
HICACHE = f"{MODEL} --max-total-tokens 5000 --enable-hierarchical-cache"
GPU = ("gpu=h100-80gb",)
RANKED = f"{MODEL} --enable-priority-scheduling --disable-priority-preemption"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "",
            (
                "scheduler=sglang",
                "policy=radix",
                "server.num_blocks=5000",
                "scheduler.chunked_prefill_size=8192",
                "scheduler.max_running_requests=2048",
            ),
        ),
        (
            "--page-size 64 --tp 2",
            ("policy.block_size=64", "server.num_blocks=78", "server.num_gpus=2"),
        ),
        (
            "--disable-overlap-schedule --chunked-prefill-size -1",
            ("scheduler=sglang_no_overlap", "scheduler.chunked_prefill_size=null"),
        ),
        ("--context-length 512", ("model.max_len=512",)),
        ("--radix-eviction-policy lfu", ("policy.radix_eviction_policy=lfu",)),
        (
            "--radix-eviction-policy tlru --radix-eviction-policy-config '{\"threshold\": 512}'",
            (
                "policy.radix_eviction_policy=tlru",
                "policy.radix_eviction_policy_config={threshold:512}",
            ),
        ),
        ("--kv-cache-dtype fp8_e4m3", ("++model.kv_dtype_bytes=1",)),
        (
            "--enable-hicache --page-size 64 --hicache-ratio 1 --hicache-write-policy write_back",
            ("policy=hicache", "policy.hicache_write_policy=write_back", "server.num_blocks=78"),
        ),
        ("--disable-radix-cache", ("policy=paged", "policy.watermark=0", "policy.block_size=1")),
        (
            "--schedule-policy=lpm --enable-mixed-chunk --max-running-requests 99",
            (
                "scheduler.schedule_policy=lpm",
                "scheduler.enable_mixed_chunk=true",
                "scheduler.max_running_requests=99",
            ),
        ),
    ],
)
def test_options_become_overrides(options, words, capsys):
    expanded = expand(f"{MODEL} --max-total-tokens 5000 --port 30000 {options}", GPU)
    assert not set(words) - set(expanded)
    assert "model=llama-3.1-8b" in expanded
    assert "--port" in capsys.readouterr().err


def test_the_model_may_be_the_first_word_as_sglang_serve_reads_it():
    """`python -m sglang.launch_server` takes no such word."""
    options = MODEL.replace("--model-path ", "")
    assert read_command(f"{options} --tp 2") == read_command(f"{MODEL} --tp 2")
    module = options.replace("sglang serve", "python -m sglang.launch_server")
    refuses("is no option", read_command, module, error=InputError)


def test_sizes_have_the_scales_of_sglangs_parser():
    sizes = "--max-total-tokens 20k --context-length 4Ki --max-prefill-tokens 1.5k"
    expanded = expand(f"{MODEL} {sizes}", GPU)
    plain = f"{MODEL} --max-total-tokens 20000 --context-length 4096 --max-prefill-tokens 1500"
    assert "server.num_blocks=20000" in expanded
    assert expanded == expand(plain, GPU)


def test_no_parameters_of_an_eviction_policy_may_be_null():
    plain = expand(f"{MODEL} --max-total-tokens 5000", GPU)
    null = "--radix-eviction-policy-config null"
    assert expand(f"{MODEL} --max-total-tokens 5000 {null}", GPU) == plain


def test_an_option_takes_as_many_values_as_its_parser_says():
    command = read_command(f"{MODEL} --bucket-time-to-first-token 0.1 0.5 --tp=2 --model-checksum")
    assert command.values["--bucket-time-to-first-token"] == "0.1 0.5"
    assert (command.values["--tp-size"], command.values["--model-checksum"]) == ("2", "")


@pytest.mark.parametrize("word", ["policy=paged", "policy.block_size=16"])
def test_another_policy_for_the_commands_tokens_is_refused(word):
    refuses(word.partition("=")[0], expand, f"{MODEL} --max-total-tokens 5000", (*GPU, word))


def test_a_pool_of_no_tokens_is_refused():
    refuses("--max-total-tokens", expand, f"{MODEL} --max-total-tokens=-5", GPU)


def test_overrides_take_precedence():
    expanded = expand(f"{MODEL} --max-total-tokens 5000", (*GPU, "server.num_blocks=7"))
    assert [word for word in expanded if word.startswith("server.num_blocks")] == [
        "server.num_blocks=7"
    ]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vllm serve x", ("is not a command", "sglang serve")),
        (f"{MODEL} --max-totl-tokens 3", ("--max-totl-tokens", "no option")),
        (f"{MODEL} --max-total-tokens", ("--max-total-tokens", "no value")),
        (f"{MODEL} --enable-mixed-chunk=false", ("--enable-mixed-chunk", "takes no value")),
        (f"{MODEL} --enable-mixed-chunk true", ("true", "no option")),
        (f"{MODEL} -tp 2", ("-tp", "no option")),
        (f"{MODEL} --page 16", ("--page-size", "--paged-experts-num-resident")),
        (f"{MODEL} --max-total-tokens 1.5Ki", ("--max-total-tokens 1.5Ki", "4Ki")),
        (f"{MODEL} --chunked-prefill-size 2k", ("--chunked-prefill-size 2k", "whole number")),
        (f"{MODEL} --port http", ("--port http", "whole number")),
        (f"{MODEL} --reasoning-parser qwen", ("--reasoning-parser qwen", "qwen3")),
        (f"{MODEL} --config server.yaml", ("--config", "into the command")),
        (f"{MODEL} --schedule-policy priority", ("--schedule-policy priority", "fcfs or lof")),
        (
            f"{MODEL} --schedule-policy shortest-prefill-first --disable-radix-cache",
            ("does not start", "--disable-radix-cache"),
        ),
        (f"{MODEL} --schedule-conservativeness nan", ("conservativeness nan", "at least 0")),
        (f"{MODEL} --swa-full-tokens-ratio 1.5", ("--swa-full-tokens-ratio 1.5", "at most 1")),
        (f"{HICACHE} --hicache-ratio inf", ("--hicache-ratio inf", "finite")),
        (f"{MODEL} --max-total-tokens many", ("--max-total-tokens many", "whole number")),
        (f"{MODEL} --mem-fraction-static 1.8", ("--mem-fraction-static", "below 1")),
        (f"{MODEL} --mem-fraction-static 0.1", ("--mem-fraction-static", "14.96 GiB")),
        (f"{MODEL} --enable-dp-attention", ("--enable-dp-attention", "not modelled")),
        (f"{MODEL} --dp-size 2", ("--dp-size", "replicas=2 router=round_robin")),
        (f"{MODEL} --enable-torch-compile", ("--enable-torch-compile", "not modelled")),
        (f"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION=9 {MODEL}", ("SGLANG_CLIP", "not modelled")),
        (f"{MODEL} --enable-priority-scheduling", ("--disable-priority-preemption",)),
        (f"{MODEL} --retraction-policy priority", ("does not start", "--enable-priority")),
        (f"{MODEL} --schedule-policy longest", ("--schedule-policy longest", "dfs-weight, fcfs")),
        (f"{MODEL} --radix-eviction-policy fifo", ("--radix-eviction-policy fifo", "lfu, lru")),
        (f"{MODEL} --schedule-conservativeness -1", ("conservativeness -1", "at least 0")),
        (f"{MODEL} --prefill-max-requests few", ("--prefill-max-requests few", "whole number")),
        (f"{MODEL} --page-size 3", ("does not start", "--chunked-prefill-size 8192", "3 tokens")),
        (f"{RANKED} --schedule-policy lpm", ("does not start", "fcfs and lof")),
        (
            f"{MODEL} --radix-eviction-policy-config threshold=3",
            ("--radix-eviction-policy-config threshold=3", "JSON"),
        ),
        (f"{MODEL} --radix-eviction-policy tlru", ("does not start", "threshold must be above")),
        (f"{MODEL} --served-model-name llama:8b", ("does not start", "colon")),
        (f"{MODEL} --hicache-ratio 2", ("--hicache-ratio", "--enable-hierarchical-cache")),
        (f"{HICACHE} --hicache-ratio 0", ("--hicache-ratio 0", "above 0")),
        (f"{HICACHE} --hicache-write-policy back", ("--hicache-write-policy back", "write_back")),
        (f"{HICACHE} --hicache-host-memory-mode buffer_only", ("buffer_only", "not modelled")),
        (f"{HICACHE} --hicache-storage-backend file", ("--hicache-storage-backend", "modelled")),
        (f"{HICACHE} --disable-radix-cache", ("does not start", "exclude each other")),
        (f"{MODEL} --context-length 999999", ("--context-length", "131,072")),
        (f"{MODEL} --max-total-tokens 3 --page-size 16", ("no page",)),
        (f"{MODEL} --dtype float32", ("--dtype float32", "testbed fits")),
        ("sglang serve --model-path openai/gpt-oss-20b", ("window", "testbed fits")),
        ("sglang serve --model-path google/gemma-4-31B-it", ("vision", "not modelled")),
        ("sglang serve --model-path nvidia/Nemotron-H-8B-Base-8K", ("state", "not modelled")),
    ],
)
def test_what_is_unknown_or_not_modelled_is_refused(command, words):
    check_refusal(words, expand, command, GPU)


@pytest.mark.parametrize("options", ["", "--disable-overlap-schedule"])
def test_hand_overs_are_refused_by_no_option_of_vllm(options):
    """Neither a further option of the command nor another scheduler with it would lead on."""
    split = ("replicas=2", "router=round_robin", "prefill_replicas=1", "arrivals.duration_s=1")
    words = ("prefill_replicas=1", "leave prefill_replicas out")
    message = check_refusal(words, simulate, *GPU, *split, from_sglang=f"{MODEL} {options}")
    assert "--no-async-scheduling" not in message


@pytest.mark.parametrize(
    ("gpu", "num_gpus", "latent", "chunk", "largest", "fraction"),
    [  # what SGLang 0.5.23 itself computes, by lockstep sglang --capacity
        ("h100-80gb", 1, False, 8192, 256, 0.83),
        ("h100-80gb", 1, True, 8192, 256, 0.816),
        ("b200", 1, False, 16384, 512, 0.854),
        ("b200", 1, True, 16384, 512, 0.849),
        ("a100-80gb", 1, False, 8192, 256, 0.83),
        ("l40s", 1, False, 4096, 32, 0.843),
        ("l40s", 1, True, 4096, 32, 0.818),
    ],
)
def test_sizes_and_the_static_share_by_the_gpu(gpu, num_gpus, latent, chunk, largest, fraction):
    sheet, size = gpu_named(gpu), size_of(gpu_named(gpu))
    assert (size.chunk, size.few) == (chunk, largest)
    model = read_model("deepseek-v3" if latent else "llama-3.1-8b")
    limits = Limits(num_gpus, chunk, 16384, None, Graphs())
    assert static_fraction(model, sheet, limits) == fraction


def test_a_small_pool_has_fewer_graphs():
    """0.829 is what SGLang computes with a pool of 5,001 tokens; 0.828 without."""
    sheet, model = gpu_named("h100-80gb"), read_model("mixtral-8x7b")
    shares = [
        static_fraction(model, sheet, Limits(2, 8192, 16384, None, Graphs(longest=longest)))
        for longest in (None, 5001)
    ]
    assert shares == [0.828, 0.829]


def test_running_requests_by_the_pool():
    assert running_requests(None, 400_000, 8192) == 4096
    assert running_requests(None, 40_000, 131_072) == 2048
    assert running_requests(None, 1000, 8192) == 500
    assert running_requests(64, 40_000, 8192) == 64


def test_fits_prints_the_lines_of_sglangs_log(capsys):
    fits(MODEL, "gpu=h100-80gb")
    lines = capsys.readouterr().out.splitlines()
    assert (
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 412224, K size: 25.16 GB, "
        "V size: 25.16 GB" in lines
    )
    assert any(line.startswith("max_total_num_tokens=412224, chunked_prefill") for line in lines)


def test_fits_takes_the_shape_of_a_model_that_is_alike():
    unknown = MODEL.replace("meta-llama/Llama-3.1-8B-Instruct", "someorg/Unknown-7B")
    refuses("model=NAME", fit_of, unknown, "h100-80gb", error=InputError)
    alike = fit_of(unknown, "h100-80gb", model="llama-3.1-8b")
    assert alike == fit_of(MODEL, "h100-80gb")
    refuses("fp8", fit_of, f"{unknown}-FP8", "h100-80gb", model="llama-3.1-8b", error=InputError)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ("--kv-cache-dtype fp8_e5m2", "float8_e5m2"),
        ("--kv-cache-dtype fp8_e4m3", "float8_e4m3fn"),
        ("--dtype half", "float16"),
        ("--dtype half --kv-cache-dtype bf16", "bfloat16"),
    ],
)
def test_fits_names_the_type_of_cached_values(capsys, options, dtype):
    fits(f"{MODEL} {options}", "gpu=h100-80gb")
    assert f"KV Cache is allocated. dtype: torch.{dtype}, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("server", "options", "cached"),
    [
        ("sglang", "", "null"),  # SGLang reads no scheme of a cache of llm-compressor's files
        ("sglang", "--kv-cache-dtype fp8_e4m3", "1"),
        ("sglang", "--kv-cache-dtype bf16", "null"),
        ("vllm", "", "1"),
        ("vllm", "--kv-cache-dtype bfloat16", "null"),
    ],
)
def test_a_run_caches_the_type_of_the_server_and_not_that_of_the_checkpoint(
    tmp_path, server, options, cached
):
    """SGLang 0.5.23's own pool of these files on an H100 is 465,472 tokens, in FP8 930,944."""
    config = config_of("llama-3.1-8b") | {"quantization_config": QUANTIZED["compressed-kv"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if server == "sglang":
        command = f"sglang serve --model-path {tmp_path} {options}"
        words, num_tokens = expand(command, GPU), {"null": 465472, "1": 930944}[cached]
        assert f"server.num_blocks={num_tokens}" in words
    else:
        words = of_vllm(f"vllm serve {tmp_path} --max-model-len 512 {options}", GPU)
    assert f"++model.kv_dtype_bytes={cached}" in words


def test_the_pool_is_as_a_log_says_from_what_it_measured():
    """Logged in January 2025: 78.81 GB free, 63.72 behind the weights, fraction 0.88."""
    memory = ServerMemory(free=78.81, weights=78.81 - 63.72, fraction=0.88)
    tokens, _ = OnePool().of_bytes(CellBytes(131072), int(memory.kv_cache * GIB), 1)
    assert abs(tokens - 444_500) < 100  # the log has two decimals


def test_windows_have_a_pool_of_their_own():
    fit = fit_of("sglang serve --model-path openai/gpt-oss-120b --tp 2", "h100-80gb")
    assert fit.window_tokens == int(fit.max_total_num_tokens * 0.8)
    assert fit.log_lines[0].startswith("Use sliding window memory pool. full_layer_tokens=")


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ("64", (1_932_581, 32_833)),
        ("1000 --page-size 16", (1_639_584, 303_408)),
        ("4000", (898_616, 1_044_385)),
        ("64 --max-total-tokens 20000", (20_000, 20_000)),
        ("64 --max-total-tokens 20001 --page-size 16", (20_000, 20_001)),
        ("64 --max-total-tokens 200000 --disable-overlap-schedule", (200_000, 24_641)),
        ("64 --chunked-prefill-size -1", (730_805, 584_644)),
    ],
)
def test_without_a_prefix_cache_windows_have_what_running_requests_need(options, tokens):
    """SGLang 0.5.23's own pools (SWARequestCapPoolConfigurator)."""
    command = "sglang serve --model-path openai/gpt-oss-120b --tp 2 --disable-radix-cache"
    fit = fit_of(f"{command} --max-running-requests {options}", "h100-80gb")
    assert (fit.max_total_num_tokens, fit.window_tokens) == tokens


def test_more_running_requests_than_windows_have_memory_for_do_not_start():
    command = "sglang serve --model-path openai/gpt-oss-120b --tp 2 --disable-radix-cache"
    many = f"{command} --max-running-requests 9000"
    assert says_no_start(refuses("lower --max-running-requests", fit_of, many, "h100-80gb"))


@pytest.mark.parametrize(("num_tokens", "starts"), [(160, False), (162, True)])
def test_a_pool_of_windows_holds_one_request(num_tokens, starts):
    command = (
        f"sglang serve --model-path openai/gpt-oss-120b --tp 2 --max-total-tokens {num_tokens}"
    )
    if starts:
        assert fit_of(command, "h100-80gb").window_tokens == 129
    else:
        assert says_no_start(refuses("127", fit_of, command, "h100-80gb"))


def test_a_server_that_does_not_start_says_how_many_gpus_do():
    words = "sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp 4"
    with pytest.raises(DoesNotStart, match="--tp-size 8 starts"):
        fit_of(words, "h200")
    with pytest.raises(DoesNotStart, match="--tp-size 8 starts"):
        expand(words, ["gpu=h200"])


@pytest.mark.parametrize(
    ("policy", "config", "named", "starts_with_another"),
    [
        ("lru", {"threshold": -3}, "threshold: lru", False),
        ("lru", {"bound": 3}, "bound: lru", False),
        ("tlru", {"threshold": 5, "next_prompt_estimate": 5}, "threshold must be above", False),
        ("lru", {"threshold": 3}, "threshold: lru", True),
        ("tlru", {"protected_threshold": 3}, "protected_threshold: tlru", True),
    ],
)
def test_parameters_that_no_eviction_policy_takes_are_wrong_alone(
    policy, config, named, starts_with_another
):
    options = f"--radix-eviction-policy {policy} --radix-eviction-policy-config"
    line = refuses(named, expand, f"{MODEL} {options} '{json.dumps(config)}'", GPU)
    assert says_no_start(line) == starts_with_another


def test_a_file_with_which_vllm_does_not_start_is_not_modelled_for_sglang(tmp_path):
    config = config_of("glm-4.7")
    del config["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = refuses("not modelled", fits, f"sglang serve --model-path {tmp_path}", "gpu=h200")
    assert "head_dim" in line
    assert not says_no_start(line)


def test_options_of_vllm_are_refused_beside_sglang():
    refuses("release=0.33", fits, MODEL, "gpu=h100-80gb", "release=0.33")


def test_a_larger_pool_than_the_memory_is_cut_to_it():
    cut = fit_of(f"{MODEL} --max-total-tokens 900000", "h100-80gb")
    assert cut.max_total_num_tokens == 412_224
    logged = fit_of(f"{MODEL} --max-total-tokens 414000", "h100-80gb")
    assert logged.max_total_num_tokens == 414_000  # within the error of the memory


def test_hits_are_of_one_server():
    both = ServedCommand(f"vllm serve {MODEL}", MODEL)
    refuses("--from-sglang", hits, "gpu=h100-80gb", served=both)


def test_simulations_from_python_take_the_command():
    config = front_end().configure((*GPU, "trace=sharegpt"), {"from_sglang": MODEL})
    assert config.server.num_blocks == 412_224
    refuses("from_vllm", simulate, *GPU, from_vllm="vllm serve x", from_sglang=MODEL)


def test_all_options_that_are_read_are_options_of_the_release():
    assert not {*OVERRIDES, *FLAGS, *understood(), *reasons()} - {*parser_options()}
    assert not {*OVERRIDES, *FLAGS} - understood()
    assert not understood() & {*reasons()}


@pytest.mark.skipif(find_spec("sglang") is None, reason="sglang 0.5.23 is not installed")
def test_the_list_of_options_is_that_of_the_installed_parser():
    from testbed.experiments.sglang_server.parser import installed_options

    assert PARSER.read_text(encoding="utf-8") == installed_options()


@pytest.mark.parametrize(
    ("options", "num_tokens"),
    [
        ("", 10_001),
        ("--hicache-ratio 0.5", 2_501),
        ("--hicache-size 0", 10_001),
        ("--page-size 64 --hicache-ratio 1", 5_056),
        ("--hicache-size 1", 7_630),
        ("--hicache-size 1 --hicache-ratio 3", 7_630),
        ("--hicache-size 1 --page-size 64 --tp 2", 15_296),
    ],
)
def test_the_host_pool_has_a_page_more_than_its_size_says(options, num_tokens):
    """SGLang's HostKVCache of a token of 131,072 bytes; a size is of each GPU, in 10^9 bytes."""
    assert fit_of(f"{HICACHE} {options}", "h100-80gb").host_tokens == num_tokens
    words = dict(word.partition("=")[::2] for word in expand(f"{HICACHE} {options}", GPU))
    size_gib = float(words["server.tiers.dram.size_gib"])
    assert int(size_gib * GIB) // 131_072 == num_tokens


def test_each_deployment_of_a_plan_has_the_server_of_its_values():
    words = [*GPU, "server.num_gpus=1,2", "trace=random"]
    space = deployments(words, ServedCommand(from_sglang=MODEL))
    for deployment, num_gpus in zip(space, (1, 2), strict=True):
        config = candidate_of(deployment).config
        fit = fit_of(f"{MODEL} --tp-size {num_gpus}", "h100-80gb")
        assert (config.server.num_gpus, config.server.num_blocks) == (
            num_gpus,
            fit.max_total_num_tokens,
        )


def test_a_plan_serves_one_command(tmp_path):
    both = ServedCommand("vllm serve x", MODEL)
    refuses(
        "--from-sglang", plan, *GPU, "slo.ttft_s=1", served=both, written=Written(runs=tmp_path)
    )


@pytest.mark.parametrize(("options", "gpu"), [("", "b200"), ("--kv-cache-dtype fp8_e4m3", "h200")])
def test_sparse_attention_over_eight_bits_is_refused(options, gpu):
    command = f"sglang serve --model-path deepseek-ai/DeepSeek-V3.2 --tp 8 {options}"
    refuses("deepseek-v3.2", fit_of, command, gpu)
    assert fit_of(f"{command} --kv-cache-dtype bfloat16", gpu).page_size == 64
