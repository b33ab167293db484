"""`--from-vllm "vllm serve ..."`: which options of vLLM's become which of ours, with vLLM's own
defaults, and what has no counterpart.
"""

import pytest
import yaml
from example_policy import Slabs
from refusals import check_words

from testbed import simulate
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.notes import no_note
from testbed.experiments.vllm_server.translation import expand
from testbed.run.machine import make_pool

SHORT = ("arrivals.duration_s=1", "outputs=summary")


@pytest.fixture
def translated(testbed):
    """The options that a command of vLLM's becomes, as the note says them."""

    def call(command, *options):
        code, _, notes = testbed("run", "--from-vllm", command, *options, *SHORT)
        assert code == 0, notes
        first, *others = notes.splitlines()
        return first.partition("vllm serve: ")[2].split(), " ".join(others)

    return call


OWN = ("policy=example_policy:Slabs", "policy.slab_size=32")


@pytest.mark.parametrize("words", [(), ("server.num_blocks=5000",), ("~policy.block_size",)])
def test_an_own_policy_without_blocks_has_the_servers_pool(words):
    """As many tokens as a policy in blocks of 16 has, without the null block."""
    command = "vllm serve Qwen/Qwen3-8B"
    notes = list[str]()
    own = configured(expand(command, ["gpu=l40s", *OWN, *words], notes.append))
    paged = configured(expand(command, ["gpu=l40s", "policy=paged", *words], no_note))
    assert make_pool(own).num_slots == make_pool(paged).num_slots
    assert own.policy.make("policy", make_pool(own)).slab_size == 32
    assert any("policy.block_size=16" in note and "Slabs" in note for note in notes)


def test_an_own_policy_without_blocks_has_the_presets_pool():
    base = ["+system=vllm-v1", "gpu=l40s", "model=qwen3-8b"]
    pools = [make_pool(configured([*base, *words])) for words in (OWN, ())]
    assert pools[0].num_slots == pools[1].num_slots


def test_an_own_class_in_python_runs_without_the_servers_blocks():
    run = simulate(
        from_vllm="vllm serve Qwen/Qwen3-8B",
        gpu="l40s",
        policy=(Slabs, {"slab_size": 32}),
        duration_s=1,
    )
    assert run.summary["run"]["pool_slots"] == 174_144  # of contiguous_max too


@pytest.mark.parametrize("word", ["policy.block_size=16", "policy.slab=3"])
def test_what_a_user_gives_a_policy_that_does_not_take_it_is_refused(testbed, word):
    code, _, notes = testbed(
        "run", "--from-vllm", "vllm serve Qwen/Qwen3-8B", "gpu=l40s", *OWN, word, *SHORT
    )
    assert code == 2
    check_words(("takes no", "did you mean slab_size?"), notes)


def test_parallelism_memory_and_limits_are_translated(translated):
    words, ignored = translated(
        "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --gpu_memory_utilization=0.8 "
        "--max-num-seqs 1000 --max-num-batched-tokens=2K",
        "gpu=h200",
    )
    assert {
        "model=llama-3.1-8b",
        "+system=vllm-v1",
        "server.num_gpus=2",
        "scheduler.max_num_seqs=1000",
        "scheduler.max_num_batched_tokens=2048",
    } <= set(words)
    assert "harmless" not in ignored
    assert any(word.startswith("server.num_blocks=") for word in words)


def test_caching_types_and_lengths_are_translated_and_ports_ignored(translated):
    words, ignored = translated(
        "vllm serve --model facebook/opt-13b --no-enable-prefix-caching --port 80 "
        "--enable-chunked-prefill --kv-cache-dtype fp8 --max-model-len 1024",
        "gpu=h200",
    )
    assert {"model=opt-13b", "policy=paged", "++model.kv_dtype_bytes=1"} <= set(words)
    assert any(word.endswith("max_len=1024") for word in words)
    check_words(("ignored", "--port 80"), ignored)


@pytest.mark.parametrize(
    ("gpu", "max_num_seqs", "max_num_batched_tokens"),
    [
        pytest.param("gpu=a100-80gb", 256, 2048, id="an A100 has less compute than memory"),
        pytest.param("gpu=l4", 256, 2048, id="a small GPU"),
        pytest.param("server=h200", 1024, 8192, id="a server"),
        pytest.param("gpu=h100-80gb", 1024, 8192, id="a large GPU"),
    ],
)
def test_limits_that_are_not_given_are_vllms_defaults_for_the_gpu(
    translated, gpu, max_num_seqs, max_num_batched_tokens
):
    words, _ = translated("vllm serve Qwen/Qwen2.5-0.5B-Instruct", gpu)
    assert "model=qwen2.5-0.5b" in words
    assert f"scheduler.max_num_seqs={max_num_seqs}" in words
    assert f"scheduler.max_num_batched_tokens={max_num_batched_tokens}" in words


def test_an_option_of_ours_counts_more_than_the_commands(translated, tmp_path):
    translated("vllm serve opt-13b", "gpu=h200", "scheduler.max_num_seqs=9", "hydra.run.dir=out")
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config["scheduler"]["max_num_seqs"] == 9
    assert config["scheduler"]["max_num_batched_tokens"] == 8192


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        pytest.param("vllm server opt-13b", ("vllm serve MODEL",), id="not serve"),
        pytest.param("serve opt-13b", ("vllm serve MODEL",), id="not vllm"),
        pytest.param("vllm serve 'opt", ("cannot be read", "quotation"), id="an open quotation"),
        pytest.param(
            "vllm serve opt-13b --max-num-seqs many", ("many", "no number"), id="no number"
        ),
        pytest.param("vllm serve opt-13b --max-num-seqs", ("has no value",), id="no value"),
        pytest.param(
            "vllm serve opt-13b --kv-cache-dtype fp9", ("fp9", "choose from auto, fp8"), id="fp9"
        ),
        pytest.param(
            "vllm serve opt-13b --quantization awq",
            ("awq", "has no counterpart"),
            id="quantization",
        ),
        pytest.param("vllm serve opt-13b -pp 2", ("pipeline", "has no counterpart"), id="pipeline"),
    ],
)
def test_commands_with_unsupported_features_are_refused(testbed, command, parts):
    error = testbed.refused("run", "--from-vllm", command, "gpu=h200", *SHORT)
    check_words(("vllm", *parts), error)


def test_weights_of_32_bits_are_refused_for_their_times(testbed):
    """`fits` answers: their bytes are known."""
    command = "vllm serve meta-llama/Llama-3.1-8B --dtype float32"
    assert testbed("fits", command, "gpu=h100-80gb")[0] == 0
    error = testbed.refused("run", "--from-vllm", command, "gpu=h100-80gb", *SHORT)
    check_words(("--dtype float32", "times", "testbed fits"), error)


def test_vllms_own_watermark_is_refused_for_its_rounding(testbed):
    """vLLM leaves floor(share * blocks) free, policy.watermark rounds up; the pool is the same."""
    command, where = "vllm serve opt-13b --watermark", ("gpu=h200", "release=0.33")
    error = testbed.refused("run", "--from-vllm", f"{command} 0.05", *where, *SHORT)
    check_words(("--watermark 0.05", "rounded down", "policy.watermark"), error)
    assert testbed("run", "--from-vllm", f"{command} 0", *where, *SHORT)[0] == 0
    code, printed, _ = testbed("fits", f"{command} 0.05", *where)
    assert (code, "admitted, not the pool" in printed) == (0, True)


def test_a_model_without_a_shape_is_refused_with_the_ways_out(testbed):
    error = testbed.refused("run", "--from-vllm", "vllm serve gpt-9", "gpu=h200", *SHORT)
    check_words(("gpt-9", "has no shape here", "config.json", "model="), error)


@pytest.mark.parametrize(
    "option",
    [pytest.param("model=opt-13b", id="no GPU"), pytest.param("server=of-opt-13b", id="a default")],
)
def test_a_command_without_a_gpu_is_refused(testbed, option):
    error = testbed.refused("run", "--from-vllm", "vllm serve opt-13b", option, *SHORT)
    check_words(("does not say on which GPU", "gpu=NAME", "h200"), error)


def test_a_gpu_of_no_known_name_is_refused(testbed):
    error = testbed.refused("fits", "vllm serve opt-13b", "gpu=h100")
    check_words(("gpu=h100", "did you mean h100-80gb"), error)


@pytest.mark.parametrize("release", ["0.19", "0.33"])
@pytest.mark.parametrize("model", ["google/gemma-3-27b-it", "openai/gpt-oss-20b"])
def test_without_the_hybrid_manager_all_layers_store_all_tokens(
    translated, testbed, model, release
):
    """The run has the pool that `fits` says."""
    command = f"vllm serve {model} --disable-hybrid-kv-cache-manager"
    words, notes = translated(command, "gpu=h200", f"release={release}")
    assert "policy=prefix_caching_v1" in words
    code, output, _ = testbed("fits", command, "gpu=h200", f"release={release}")
    assert code == 0
    (size,) = (line for line in output.splitlines() if "GPU KV cache size" in line)
    assert size.strip() in notes


def test_a_block_of_another_size_leaves_the_pool_its_tokens(translated):
    """The server is built with it: no override contradicts what follows from the command."""
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
    usual, _ = translated(command, "gpu=h100-80gb")
    wider, _ = translated(command, "gpu=h100-80gb", "policy.block_size=32")
    assert num_blocks(usual) // 2 == num_blocks(wider)


def num_blocks(words):
    return next(
        int(word.partition("=")[2]) for word in words if word.startswith("server.num_blocks=")
    )


@pytest.mark.parametrize(
    ("release", "method", "expected"),
    [
        pytest.param("0.19", "ngram", ("scheduler=vllm_v1", "speculation=ngram"), id="CPU"),
        pytest.param("0.19", "ngram_gpu", ("speculation=ngram_gpu",), id="GPU by name"),
        pytest.param("0.33", "ngram", ("speculation=ngram_gpu",), id="GPU by release"),
    ],
)
def test_drafts_are_looked_up_where_the_release_does(testbed, release, method, expected):
    """Those of the GPU are scheduled ahead; release 0.33 has no others."""
    drafts = f"""--speculative-config '{{"method": "{method}", "num_speculative_tokens": 3}}'"""
    command = f"vllm serve meta-llama/Llama-3.1-8B-Instruct {drafts}"
    code, _, notes = testbed(
        "run", "--from-vllm", command, "gpu=h100-80gb", f"release={release}", *SHORT
    )
    assert code == 0, notes
    translated = notes.split("\n")[0].split(" ")
    assert set(expected) <= set(translated)
    assert ("scheduler=vllm_v1" in translated) == ("scheduler=vllm_v1" in expected)


def test_layers_of_chunks_are_refused(testbed):
    command = "vllm serve meta-llama/Llama-4-Scout-17B-16E-Instruct -tp 4 --max-model-len 131072"
    code, _, notes = testbed("run", "--from-vllm", command, "gpu=h200", *SHORT)
    assert code == 2
    check_words(("chunked attention", "testbed fits"), notes)
