"""Options that vLLM refuses, or takes, beside others: as its own configuration did on a CPU, of the
release that is named.
"""

import json
from dataclasses import replace

import pytest
from refusals import refuses, says_no_start

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.shapes import read_model
from testbed.experiments.real.lockstep import model_configs
from testbed.experiments.vllm_server.answer import fit_of
from testbed.experiments.vllm_server.named import gpu_named
from testbed.experiments.vllm_server.translation import expand, served
from testbed.speculation.draft_model import drafters_of_vocabulary
from testbed.vllm.attention_backends import cache_problem
from testbed.vllm.releases import release_numbered

FAMILIES = json.loads(model_configs.FAMILIES.read_text(encoding="utf-8"))
LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
LATENT = "vllm serve deepseek-ai/DeepSeek-V2-Lite --trust-remote-code --max-model-len 8192"
STATES = "vllm serve Qwen/Qwen3.5-9B --max-model-len 8192"
MTP = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'"""
NGRAM = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""
VISION = "vllm serve Qwen/Qwen3-VL-8B-Instruct"
QWEN, SMALL_QWEN = "vllm serve Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"


def drafts(command, drafter, method="draft_model"):
    values = {"method": method, "model": drafter, "num_speculative_tokens": 3}
    return f"{command} --max-model-len 4096 --speculative-config '{json.dumps(values)}'"


def eagle3(model):
    return drafts(f"vllm serve {model}", "a/b", "eagle3")


def lookup(method):
    values = {"method": method, "num_speculative_tokens": 3}
    values |= {"prompt_lookup_min": 5, "prompt_lookup_max": 2}
    return f"{LLAMA} --speculative-config '{json.dumps(values)}'"


DRAFTED = drafts(LLAMA, "meta-llama/Llama-3.2-1B-Instruct")
FULL_BATCH = "--max-num-batched-tokens 256 --max-num-seqs 256"
OLDER = ("0.19", "0.20", "0.28")
E5M2 = "--quantization fp8 --kv-cache-dtype fp8_e5m2"
THRESHOLD = "--long-prefill-token-threshold 2000 --max-model-len 1000"
SPARSE = "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 16 --max-num-seqs 64 --max-model-len 8192"
SINKS = "vllm serve openai/gpt-oss-20b"
GLM = "vllm serve zai-org/GLM-4.7 -tp 8 --max-model-len 8192"
IMAGES = "vllm serve moonshotai/Kimi-K2.5 --max-model-len 8192 --kv-cache-memory-bytes 4G"
MAMBA = "vllm serve nvidia/Nemotron-H-8B-Base-8K"


def fits(words, release="0.33"):
    return fit_of(words, "h100-80gb", release_numbered(release))


@pytest.mark.parametrize(
    ("words", "release", "problem"),
    [
        (f"{LLAMA} {THRESHOLD}", "0.33", "greater than max_model_len"),
        (f"{LLAMA} --kv-cache-dtype float16", "0.33", "incompatible"),
        (f"{LLAMA} --kv-cache-dtype bfloat16 --dtype half", "0.33", "incompatible"),
        (f"{LLAMA} {MTP}", "0.33", "no layers that draft"),
        (f"{LLAMA} {NGRAM} --async-scheduling", "0.19", "synchronously"),
        (f"{LATENT} --kv-cache-dtype fp8_e5m2", "0.33", "fp8_e5m2"),
        (f"{LATENT} --dtype float32", "0.33", "float32"),
        (f"{STATES} --no-enable-chunked-prefill", "0.33", "chunks of prompts"),
        (f"{STATES} --enable-prefix-caching --no-enable-chunked-prefill", "0.19", "chunks"),
        (f"{SINKS} -tp 16", "0.33", "not copied"),
        (f"{LLAMA} -tp 2 --enable-expert-parallel", "0.33", "no experts"),
        (f"{SPARSE} --kv-cache-dtype float16", "0.20", "sparse attention"),
        (f"{SPARSE} --dtype half", "0.19", "sparse attention"),
        (f"{SPARSE} --kv-cache-dtype fp8_e4m3", "0.33", "fp8_e4m3"),
        (f"{GLM} -pp 46", "0.33", "layers 0 to 1 are a stage without experts"),
        (f"{IMAGES} -tp 32", "0.33", "16 heads of the encoder"),
        (f"{IMAGES} -tp 32 --language-model-only", "0.33", "16 heads of the encoder"),
        (f"{MAMBA} -tp 16", "0.33", "8 groups"),
        ("vllm serve microsoft/phi-4 -tp 5", "0.33", "100,352 padded vocabulary"),
        (f"{SINKS} --dtype half", "0.33", "need bfloat16"),
        (f"{SINKS} --dtype float32", "0.33", "need bfloat16"),
        ("vllm serve Qwen/Qwen3-8B-FP8 --kv-cache-dtype fp8_e5m2", "0.33", "scales of another"),
        ("vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 8", "0.28", "192 on each of 8 GPUs"),
        ("vllm serve Qwen/Qwen3-30B-A3B-FP8 -tp 4", "0.19", "192 on each of 4 GPUs"),
        ("vllm serve Qwen/Qwen3-30B-A3B-FP8 -tp 32", "0.33", "24 on each of 32 GPUs"),
        (drafts("vllm serve Qwen/Qwen2.5-14B-Instruct", SMALL_QWEN), "0.33", "152,064"),
        (drafts("vllm serve Qwen/Qwen2.5-14B-Instruct", SMALL_QWEN), "0.19", "152,064"),
        (drafts("vllm serve mistralai/Mistral-7B-Instruct-v0.2", SMALL_QWEN), "0.28", "32,000"),
        (drafts("vllm serve google/gemma-3-27b-it", "google/gemma-3-1b-it"), "0.33", "262,208"),
        (drafts(f"{QWEN} -tp 4", SMALL_QWEN), "0.33", "14 attention heads"),
        (drafts(VISION, "Qwen/Qwen3-0.6B"), "0.20", "language-model-only"),
        (f"{DRAFTED} {FULL_BATCH}", "0.20", "256 of these"),
        (f"{DRAFTED} --max-num-batched-tokens 1 --max-num-seqs 1", "0.28", "1 of these"),
        *((f"{LLAMA} --dcp-comm-backend a2a", old, "needs --decode") for old in OLDER),
        *((f"{LLAMA} {E5M2}", old, "scales of another") for old in OLDER),
        (eagle3("google/gemma-2-9b-it"), "0.33", "no hidden states"),
        (eagle3("google/gemma-2-9b-it"), "0.19", "no hidden states"),
        (eagle3("mistralai/Mixtral-8x7B-Instruct-v0.1"), "0.28", "no hidden states"),
        (eagle3("mistralai/Mistral-7B-v0.3"), "0.20", "it does in 0.28"),
        (eagle3("ibm-granite/granite-3.1-8b-instruct"), "0.28", "0.33"),
    ],
)
def test_options_that_vllm_refuses(words, release, problem):
    refuses(problem, fits, words, release, error=DoesNotStart)


# Of the same options: one that is refused beside others, and a value that is wrong alone
CODES = {
    "--block-size 24": 1,
    "--block-size many": 2,
    "--max-model-len 999999": 1,
    "--max-model-len 0": 2,
    "--gpu-memory-utilization 0.999": 1,
    "--gpu-memory-utilization 9": 2,
    "--max-num-batched-tokens 8 --max-num-seqs 16": 1,
    "--max-num-batched-tokens -8": 2,
    eagle3("")[len("vllm serve ") :].replace('"model": "a/b", ', ""): 1,
    lookup("ngram")[len(LLAMA) :]: 1,
    NGRAM.replace("3", "0"): 2,
    NGRAM.replace("ngram", "nonsense"): 2,
}


@pytest.mark.parametrize("words", CODES)
def test_a_start_that_is_refused_has_another_exit_code_than_a_wrong_value(testbed, words):
    """JSON.md has the rule; FlexAttention serves blocks of 24 in older releases."""
    code, output, error = testbed("fits", f"{LLAMA} {words}", "gpu=h100-80gb", "release=0.33")
    assert (code, output) == (CODES[words], "")
    assert says_no_start(error) == (code == 1)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--kv-cache-memory-bytes 3.5G", "--kv-cache-memory-bytes"),
        ("--quantization fp8 --dtype float32", "--dtype"),
        ("--max-num-partial-prefills 2", "--max-num-partial-prefills"),
        ("--max-num-seqs 1k", "--max-num-seqs"),
        ("-tp 2.0", "--tensor-parallel-size"),
        ("--long-prefill-token-threshold 0.5", "--long-prefill-token-threshold"),
        ("--quantization none", "--quantization"),
    ],
)
def test_values_that_vllm_refuses_and_so_does_a_question_for_memory(words, option):
    with pytest.raises(InputError, match=option):
        fits(f"{LLAMA} {words}", "0.19")


@pytest.mark.parametrize(
    ("words", "release", "problem"),
    [
        ("--prefix-caching-hash-algo md5", "0.33", "one of sha256, sha256_cbor"),
        ("--moe-backend foo", "0.33", "one of aiter"),
        ("--moe-backend deep-gemm-mega-moe", "0.19", "one of aiter"),
        ("--watermark 1.5", "0.33", "must be >=0 and <1"),
        ("--watermark nan", "0.28", "must be >=0 and <1"),
        ("--max-num-active-seqs 0", "0.33", "must be >=1"),
        ("--max-num-active-seqs 5000", "0.33", "above max_num_seqs, 1,024"),
        ("--max-logprobs -2", "0.28", "must be >=-1"),
        ("--seed abc", "0.33", "no whole number"),
        ("--seed None", "0.19", "no whole number"),
        ("--max-num-queued-tokens 1.5", "0.33", "no whole number"),
        ("--allowed-origins *", "0.33", "no JSON"),
        ("--collect-detailed-traces model foo", "0.33", "one of all"),
        ("""--attention-config '{"flash_attn": 2}'""", "0.33", "did you mean flash_attn"),
        ("--attention-config.flash_attn 2", "0.33", "no key flash_attn"),
        ("--attention-config 2", "0.33", "no table"),
    ],
)
def test_a_value_that_the_parser_or_the_configuration_refuses(words, release, problem):
    """As vLLM's parsers and configurations of these releases did."""
    refuses(problem, fits, f"{LLAMA} {words}", release)


def test_a_cache_of_16_bits_has_the_type_that_the_gpu_computes_in():
    """A T4 serves a checkpoint of bfloat16 in float16."""
    small, newest = (
        "vllm serve meta-llama/Llama-3.2-1B --max-model-len 2048",
        release_numbered("0.33"),
    )
    assert fit_of(f"{small} --kv-cache-dtype float16", "t4", newest).num_blocks
    refuses("incompatible", fit_of, f"{small} --kv-cache-dtype bfloat16", "t4", newest)


@pytest.mark.parametrize(
    ("words", "release"),
    [
        (f"{LLAMA} {THRESHOLD}", "0.19"),
        (f"{LLAMA} --kv-cache-dtype float16", "0.28"),
        (f"{LLAMA} --kv-cache-dtype float16 --dtype half", "0.33"),
        (f"{LLAMA} {NGRAM} --async-scheduling", "0.33"),
        (f"{STATES} --no-enable-chunked-prefill", "0.19"),
        (f"{STATES} --no-enable-chunked-prefill --no-enable-prefix-caching", "0.33"),
        (f"{STATES} {MTP}", "0.33"),
        (f"{SINKS} -tp 8", "0.33"),
        (f"{SPARSE} --dtype half", "0.33"),
        (f"{SPARSE} --kv-cache-dtype fp8", "0.33"),
        ("vllm serve google/gemma-4-31b-it -tp 8 --max-model-len 8192", "0.33"),
        (f"{GLM} -pp 23", "0.33"),
        (f"{IMAGES} -tp 16", "0.33"),
        (f"{MAMBA} -tp 8", "0.33"),
        (f"{LLAMA} --disable-sliding-window", "0.33"),
        (f"{LLAMA} --dcp-comm-backend a2a", "0.33"),
        (f"{LLAMA} --moe-backend Flashinfer-TRTLLM --watermark 0.5 --seed -1", "0.33"),
        (f"{LLAMA} --max-log-len None --max-logprobs -2", "0.19"),
        (f"{LLAMA} --max-num-queued-tokens 8k --max-num-active-seqs 1024", "0.33"),
        (f"{LLAMA} --attention-config.flash_attn_version 2", "0.33"),
        (f"{LLAMA} {E5M2}", "0.33"),
        (f"{LLAMA} --quantization None --max-model-len 1.5k", "0.33"),
        (drafts(VISION, "Qwen/Qwen3-0.6B"), "0.28"),
        (drafts(f"{VISION} --language-model-only", "Qwen/Qwen3-0.6B"), "0.20"),
        (drafts(f"{QWEN} -tp 2", SMALL_QWEN), "0.33"),
        (drafts("vllm serve Qwen/Qwen2.5-14B-Instruct", "Qwen/Qwen2.5-7B-Instruct"), "0.33"),
        (DRAFTED, "0.19"),
        (f"{DRAFTED} {FULL_BATCH}", "0.28"),
        (f"{DRAFTED} {FULL_BATCH.replace('256', '257', 1)}", "0.20"),
        (drafts("vllm serve google/gemma-2-9b-it", "a/b", "eagle"), "0.33"),
        (eagle3("mistralai/Mistral-7B-v0.3"), "0.28"),
        (eagle3("ibm-granite/granite-3.1-8b-instruct"), "0.33"),
    ],
)
def test_options_that_vllm_takes(words, release):
    assert fits(words, release).kv_tokens > 0


@pytest.mark.parametrize(("named", "is_assumed"), [({}, False), ({"architectures": None}, True)])
def test_a_file_that_names_no_class_is_assumed_to_generate_text(tmp_path, named, is_assumed):
    """vLLM 0.33 serves a Qwen3Model for embeddings; a shape that ships has no such remark."""
    (tmp_path / "config.json").write_text(json.dumps(FAMILIES["qwen3"] | named))
    words, said = f"vllm serve {tmp_path} --max-model-len 512", list[str]()
    assert ["embeddings" in note for note in fits(words).assumptions] == [True] * is_assumed
    expand(words, ["gpu=h100-80gb", "release='0.33'"], said.append)
    assert sum("assumed: the class that generates" in line for line in said) == is_assumed
    assert not fits(LLAMA).assumptions


def test_a_drafter_s_batch_that_vllm_does_not_check_is_not_modelled():
    """As vLLM 0.19's scheduler: a budget of 0 counts as none, and it takes the whole batch."""
    with pytest.raises(InputError, match="256 of these"):
        fits(f"{DRAFTED} {FULL_BATCH}", "0.19")


LONG = "vllm serve mistralai/Mistral-7B-Instruct-v0.2"


def test_a_drafter_with_windows_is_not_modelled():
    with pytest.raises(InputError, match="windows or states"):
        fits(drafts(LONG, "mistralai/Mistral-7B-v0.1"), "0.33")


@pytest.mark.parametrize(("release", "longest"), [("0.33", 4096), ("0.19", 16384)])
def test_a_server_says_what_its_drafter_s_few_positions_change(release, longest):
    words = drafts(LONG, "meta-llama/Llama-2-7b-hf").replace("4096", "16384")
    found = fits(words, release)
    assert found.max_model_len == longest
    [note] = (of for of in found.assumptions if "4,096 positions of llama-2-7b" in of)
    assert ("drafts go on" in note) == (longest > 4096)
    said = list[str]()
    expand(words, ["gpu=h100-80gb", f"release='{release}'"], said.append)
    assert {*found.assumptions} <= {line.removeprefix("vllm serve: ") for line in said}


@pytest.mark.parametrize(("release", "left"), [("0.20", "7,168"), ("0.28", "")])
def test_a_server_says_what_its_drafter_takes_of_an_iteration(release, left):
    taken = [note for note in fits(DRAFTED, release).assumptions if "iterations take" in note]
    assert [left in note for note in taken] == [True] * bool(left)


@pytest.mark.parametrize(
    ("of_file", "cached", "starts"),
    [
        ("float16", "float16", True),
        ("float16", "bfloat16", False),
        ("bfloat16", "bfloat16", True),
        ("bfloat16", "float16", False),
        ("float32", "bfloat16", True),
        ("float32", "float16", False),
    ],
)
def test_a_cache_of_16_bits_has_the_type_of_the_weights(tmp_path, of_file, cached, starts):
    config = FAMILIES["qwen3"] | {"dtype": of_file}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = f"vllm serve {tmp_path} --max-model-len 512 --kv-cache-dtype {cached}"
    if starts:
        assert fits(words).kv_tokens > 0
    else:
        refuses("incompatible", fits, words, error=DoesNotStart)


@pytest.mark.parametrize(
    ("name", "sizes", "gpu", "served_by"),
    [
        ("deepseek-v2-lite", {"v_size": 256}, "h100-80gb", "0.19"),
        ("deepseek-v2-lite", {"kv_rank": 256}, "b200", "0.33"),
        ("glm-4.7-flash", {}, "a100-80gb", "0.33"),
        ("deepseek-v3.2", {"v_size": 256}, "b200", "0.33"),
        ("deepseek-v3.2", {"kv_rank": 256}, "h100-80gb", "0.33"),
        ("deepseek-v3.2", {"kv_rank": 256}, "b200", ""),
        ("deepseek-v3.2", {"kv_rank": 256, "packed_bytes": 656}, "h100-80gb", ""),
        ("deepseek-v2-lite", {"v_size": 256}, "h100-80gb", ""),
        ("deepseek-v2-lite", {"rope_size": 128}, "b200", ""),
    ],
)
def test_sizes_of_latent_attention_that_a_backend_takes(name, sizes, gpu, served_by):
    model = read_model(name)
    model = replace(model, latent=replace(model.latent, **sizes))
    release = release_numbered(served_by or "0.33")
    assert bool(cache_problem(model, gpu_named(gpu), release)) == (not served_by)


def test_a_block_is_any_multiple_of_what_the_kernels_take():
    usual = fits(LLAMA, "0.19")
    longer = fits(f"{LLAMA} --block-size 48", "0.19")
    assert longer.block_size == 48
    assert usual.kv_tokens - longer.kv_tokens < 48


def test_the_longest_sequence_is_a_batch_if_prompts_are_not_cut():
    words = f"{LLAMA} --no-enable-chunked-prefill --max-num-batched-tokens 2000"
    assert fits(f"{words} --max-model-len 2000").longest_model_len == 2000


def test_one_window_for_all_layers_needs_no_hybrid_manager():
    words = "vllm serve mistralai/Mistral-7B-v0.1 --max-model-len 32768"
    assert (
        fits(f"{words} --disable-hybrid-kv-cache-manager").max_concurrency
        == fits(words).max_concurrency
    )


@pytest.mark.parametrize(
    ("release", "blocks", "concurrency"), [("0.19", 65536, 8.0), ("0.20", 131072, 15.04)]
)
def test_events_of_the_cache_join_groups_in_019(tmp_path, release, blocks, concurrency):
    """gpt-oss in 4 GiB, as vLLM 0.19 plans it and as later releases do; states it does not serve,
    nor groups that the command asks for.
    """
    events = "--kv-cache-memory-bytes 4294967296 --kv-events-config '{}'"
    (tmp_path / "config.json").write_text(json.dumps(FAMILIES["gpt-oss"]), encoding="utf-8")
    found = fits(f"vllm serve {tmp_path} {events}", release)
    assert (found.num_blocks, round(found.max_concurrency, 2)) == (blocks, concurrency)
    if release == "0.19":
        refuses("--kv-events-config", fits, f"{STATES} {events}", release)
        groups = f"{SINKS} {events} --no-disable-hybrid-kv-cache-manager"
        refuses("--kv-events-config", fits, groups, release, error=DoesNotStart)


def test_a_pool_without_a_block_says_what_to_do():
    with pytest.raises(DoesNotStart, match="larger pool"):
        fits(f"{LLAMA} --kv-cache-memory-bytes 1000")


def test_whole_experts_take_larger_workspaces_and_are_not_simulated():
    """As vLLM starts it: the same pages of given bytes, and undivided columns in its kernels."""
    words = "vllm serve Qwen/Qwen3-30B-A3B -tp 2 --max-model-len 8192"
    divided, whole = fits(words), fits(f"{words} --enable-expert-parallel")
    assert whole.weights_gib == divided.weights_gib
    assert whole.activation_gib > divided.activation_gib
    with pytest.raises(InputError, match="enable-expert-parallel"):
        expand(f"{words} --enable-expert-parallel", ["gpu=h100-80gb"])


@pytest.mark.parametrize(("release", "words"), [("0.19", LLAMA), ("0.20", LLAMA)])
def test_older_releases_serve_any_block_by_another_kernel(release, words):
    """As vLLM's planner divides the bytes; later releases have no kernel for such blocks."""
    pool = f"{words} --kv-cache-memory-bytes 4294967296 --max-model-len 8192"
    found = fits(f"{pool} --block-size 100", release)
    assert (found.block_size, found.num_blocks) == (100, (4 << 30) // (100 * 131072))
    with pytest.raises(InputError, match="vllm serve: --block-size "):
        fits(f"{pool} --block-size 100", "0.28")
    with pytest.raises(InputError, match="FlexAttention"):
        expand(f"{pool} --block-size 100", ["gpu=h100-80gb", f"release='{release}'"])


@pytest.mark.parametrize("words", [LATENT, STATES, SINKS, "vllm serve google/gemma-2-9b-it"])
def test_not_every_model_has_any_block(words):
    with pytest.raises(InputError, match="--block-size"):
        fits(f"{words} --block-size 8 --max-num-seqs 8", "0.19")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("meta-llama/Lama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("Qwen/Qwen3-33B", "qwen3-32b"),
        ("meta-llama/Llama-3.1-8B-Instrukt", "llama-3.1-8b"),
    ],
)
def test_a_mistyped_model_is_answered_with_the_few_that_are_like_it(name, meant):
    with pytest.raises(InputError) as raised:
        fits(f"vllm serve {name}")
    assert meant in str(raised.value)
    assert len(str(raised.value)) < 300


def test_gpus_of_several_hosts_are_named_as_such():
    """DeepSeek-V3 on H100s: 16 GPUs, twice as many as a host has."""
    with pytest.raises(DoesNotStart) as raised:
        fits("vllm serve deepseek-ai/DeepSeek-V3 --max-model-len 16384 -tp 8")
    assert "16 starts, on 2 hosts" in str(raised.value)
    with pytest.raises(DoesNotStart) as raised:
        fits("vllm serve meta-llama/Llama-3.3-70B-Instruct --max-model-len 16384")
    assert "host" not in str(raised.value)


@pytest.mark.parametrize("asked", ["-tp 2", "-tp 2 --gpu-memory-utilization 0.95"])
def test_every_command_names_the_same_ways_to_start(asked):
    """`fits`, and what `run` and `plan` translate."""
    words = f"vllm serve meta-llama/Llama-3.3-70B-Instruct --max-model-len 65536 {asked}"
    with pytest.raises(DoesNotStart) as of_fits:
        fits(words)
    with pytest.raises(DoesNotStart) as of_run:
        served(words, ["gpu=h100-80gb", "release=0.33"])
    assert of_run.value.remedy == of_fits.value.remedy
    assert "--max-model-len" in of_fits.value.remedy
    assert "--tensor-parallel-size 4" in of_fits.value.remedy


@pytest.mark.parametrize(
    "value",
    [
        '{"method":"ngram","num_speculative_tokens":3}',
        '{"method": "ngram", "num_speculative_tokens": 3}',
        '{ "method": "ngram" }',
    ],
)
@pytest.mark.parametrize("option", ["--speculative-config ", "--kv-transfer-config="])
def test_json_without_its_quotes_is_told_to_have_them(option, value):
    """As the command's own words have them, which a shell would take apart."""
    with pytest.raises(InputError) as error:
        fits(f"{LLAMA} {option}{value}")
    assert "quotes" in error.value.problem
    assert "single quotes" in error.value.remedy


def test_a_template_is_no_json():
    assert fits(f"""{LLAMA} --chat-template '{{{{ messages }}}}'""").kv_tokens > 0


@pytest.mark.parametrize(
    ("words", "gpu", "starts"),
    [
        ("google/gemma-3-4b-it", "a100-80gb", False),  # tokens of an image attend to later ones
        ("google/gemma-3-4b-it --language-model-only", "a100-80gb", True),
        ("google/gemma-3-4b-it", "l40s", True),
        ("microsoft/Phi-3-mini-4k-instruct", "a100-80gb", False),  # heads of 96 values
        ("microsoft/Phi-3-mini-4k-instruct", "l40s", True),
        ("meta-llama/Llama-3.2-1B-Instruct", "a100-80gb", True),  # FlashInfer's
    ],
)
def test_triton_s_kernels_read_no_fp8_before_ada(words, gpu, starts):
    """As vLLM 0.33's classes: what FlashInfer does not serve is left to Triton."""
    command, newest = f"vllm serve {words} --max-model-len 2048 --kv-cache-dtype fp8", "0.33"
    if starts:
        assert fit_of(command, gpu, release_numbered(newest)).num_blocks > 0
    else:
        refuses(f"no FP8 cache on {gpu}", fit_of, command, gpu, release_numbered(newest))


E4M3, E5M2 = "--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e5m2"


@pytest.mark.parametrize(
    ("name", "backend", "gpu", "words", "starts"),
    [
        ("Qwen/Qwen3-8B", "flash_attn", "l40s", "", True),
        ("Qwen/Qwen3-8B", "FLASH_ATTN", "l40s", E4M3, False),
        ("Qwen/Qwen3-8B", "FLASH_ATTN", "h100-80gb", E4M3, True),
        ("Qwen/Qwen3-8B", "flash_attn", "h100-80gb", E5M2, False),
        ("Qwen/Qwen3-8B", "FLASH_ATTN", "b200", E4M3, True),
        ("Qwen/Qwen3-8B", "FLASHINFER", "a100-80gb", E5M2, True),
        ("Qwen/Qwen3-8B", "TRITON_ATTN", "a100-80gb", E4M3, False),
        ("Qwen/Qwen3-8B", "TRITON_ATTN", "l40s", E5M2, True),
        ("Qwen/Qwen3-8B", "FLEX_ATTENTION", "b200", E4M3, False),
        ("Qwen/Qwen3.5-9B", "FLASH_ATTN", "b200", E4M3, False),  # heads of 256
        ("microsoft/Phi-3-mini-4k-instruct", "FLASHINFER", "h100-80gb", "", False),
        ("microsoft/Phi-3-mini-4k-instruct", "FLASH_ATTN", "h100-80gb", "", True),
        ("openai/gpt-oss-20b", "FLASHINFER", "h100-80gb", "", False),
        ("openai/gpt-oss-20b", "FLASH_ATTN", "l40s", "", False),
        ("openai/gpt-oss-20b", "FLEX_ATTENTION", "b200", "", False),
        ("openai/gpt-oss-20b", "TRITON_ATTN", "a100-80gb", "", True),
        ("google/gemma-2-9b-it", "FLEX_ATTENTION", "l40s", "", False),
        ("google/gemma-3-27b-it", "FLASH_ATTN", "h100-80gb", "", False),
        ("google/gemma-3-27b-it", "FLASH_ATTN", "b200", "", True),
        ("google/gemma-3-27b-it", "FLASHINFER", "b200", "", False),
        ("google/gemma-3-27b-it", "FLEX_ATTENTION", "h100-80gb", "", True),
    ],
)
def test_a_backend_that_a_command_names_serves_the_model(name, backend, gpu, words, starts):
    """As vLLM 0.33's classes; a name may be in small letters."""
    command = f"vllm serve {name} --max-model-len 512 --max-num-seqs 8 {words}"
    asked = f"{command} -tp 2 --attention-backend {backend}", gpu, release_numbered("0.33")
    if starts:
        assert fit_of(*asked).num_blocks > 0
    else:
        refuses("--attention-backend", fit_of, *asked, error=DoesNotStart)


def test_a_backend_of_another_name_is_refused():
    with pytest.raises(InputError, match="--attention-backend XFORMERS"):
        fits(f"{LLAMA} --attention-backend XFORMERS")


@pytest.mark.parametrize(("name", "block"), [("4b", 64), ("12b", 64), ("27b", 16)])
def test_a_kernel_that_masks_images_on_blackwell_has_a_block_of_its_own(name, block):
    """As vLLM 0.33's classes: two kernels serve heads of 256, and FlashAttention those of 128."""
    words = f"vllm serve google/gemma-3-{name}-it --max-model-len 512"
    assert fit_of(words, "b200", release_numbered("0.33")).block_size == block


@pytest.mark.parametrize(("num_seqs", "starts"), [(512, True), (513, False)])
def test_a_batch_beside_adapters_holds_the_drafts_of_all_sequences(num_seqs, starts):
    words = f"{LLAMA} {NGRAM} --enable-lora --max-num-batched-tokens 2048 --max-model-len 512"
    words += f" --max-num-seqs {num_seqs}"
    if starts:
        assert fits(words).kv_tokens > 0
    else:
        refuses("need 2,052", fits, words, error=DoesNotStart)


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
def test_the_shortest_look_up_is_no_longer_than_the_longest(method):
    with pytest.raises(InputError, match="lookup_max=2"):
        fits(lookup(method))


@pytest.mark.parametrize(
    ("drafter", "problem"),
    [
        ("Qwen/Qwen3.5-9B", "MTP"),
        ("RedHatAI/Llama-3.2-1B-Instruct-FP8-dynamic", "quantised"),
    ],
)
def test_what_a_drafter_would_be_otherwise_is_refused(drafter, problem):
    """As vLLM reads them: a model with layers that draft is one for method mtp."""
    with pytest.raises(InputError, match=problem):
        fits(drafts("vllm serve Qwen/Qwen3.5-27B --language-model-only", drafter))


def test_a_drafter_caps_the_longest_sequence_in_033():
    """As vLLM's VllmConfig does, before which longer sequences have no drafts."""
    words = drafts(LLAMA, "meta-llama/Meta-Llama-3-8B").replace("4096", "9000")
    assert fits(words).max_model_len == 8192
    assert fits(words, "0.28").max_model_len == 9000


def test_a_refused_drafter_names_those_of_the_same_vocabulary():
    with pytest.raises(DoesNotStart) as raised:
        fits(drafts("vllm serve Qwen/Qwen2.5-14B-Instruct", SMALL_QWEN))
    assert "qwen2.5-7b" in raised.value.remedy


@pytest.mark.parametrize(
    ("model", "named", "left_out"),
    [
        ("mixtral-8x7b", ["of its family", "mistral-7b"], ["llama-2-7b", "mistral-7b-v0.1"]),
        ("phi-4", ["equal size", "olmo-2-7b"], ["of its family"]),
        ("gemma-3-27b", ["no smaller"], ["gemma-3-4b"]),
        ("qwen3-32b", ["qwen3-0.6b"], ["qwen3-next-80b-a3b"]),
    ],
)
def test_proposed_drafters_are_modelled_and_of_the_family_if_any_is(model, named, left_out):
    remedy = drafters_of_vocabulary(read_model(model))
    assert all(words in remedy for words in named)
    assert not any(name in remedy for name in left_out)


@pytest.mark.parametrize(("release", "has_option"), [("0.20", False), ("0.28", True)])
def test_a_refused_drafter_names_the_option_with_which_vllm_maps_vocabularies(release, has_option):
    with pytest.raises(DoesNotStart) as raised:
        fits(drafts("vllm serve Qwen/Qwen2.5-14B-Instruct", SMALL_QWEN), release)
    assert ("use_heterogeneous_vocab" in raised.value.remedy) == has_option
