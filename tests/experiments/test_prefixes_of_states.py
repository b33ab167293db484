"""Hits of vLLM's prefix cache on models with states: numbers of vLLM's own scheduler and manager
of 0.19.0 and 0.33.0, driven on a CPU with requests one after the other.
"""

import pytest

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.core.shapes import read_model
from testbed.core.slots import ceil_div
from testbed.core.specs import GIB
from testbed.experiments.vllm_server.answer import fit_of
from testbed.experiments.vllm_server.named import gpu_named
from testbed.experiments.vllm_server.translation import expand
from testbed.run.result import front_end
from testbed.run.simulate import run
from testbed.vllm.command import read_command
from testbed.vllm.releases import RELEASES
from testbed.vllm.server import Checkpoint, server_with

IDS = 16  # tokens of an id
QWEN35 = "Qwen/Qwen3.5-27B"
QWEN35_SMALL, NEXT, NEMOTRON = "qwen3.5-9b", "qwen3-next-80b-a3b", "nemotron-h-8b"


def prompts(lengths, shared=None):
    """Lengths and contents of prompts, each of which begins with so many tokens of the one before;
    None: with all.
    """
    made = []
    for number, length in enumerate(lengths):
        before = made[-1][1] if made else ()
        before = before if shared is None else before[: shared // IDS]
        first = 10**6 * (number + 1)
        own = range(first, first + ceil_div(length, IDS) - len(before))
        made.append((length, (*before, *own)))
    return made


SHARED = prompts([8000] * 6, shared=6000)
LONG = prompts([16000] * 4, shared=12000)
GROWING = prompts([4000, 5504, 7008, 8512])
SHORT = prompts([3000] * 5, shared=2000)
CHAT = prompts([4000, 5900, 7800, 9700])  # 1,700 tokens of each are an answer, and 200 a question


def found(contents, model, gpu, release, *options, gap_s=30, output_len=8):
    """The tokens of a block, and those that each prompt finds, by a server's command."""
    limits = "--max-model-len 32768 --max-num-seqs 64"
    command = " ".join(["vllm serve", model, limits, *options])
    words = expand(command, [f"gpu={gpu}", f"release='{release}'"])
    of_run = [word for word in words if not word.startswith("workload.")]
    return found_by(of_run, contents, gap_s, output_len)


def preset(model, gpu, release):
    """The words of a server that no command can ask for: its weights or its prompts are too
    large.
    """
    return [
        "+system=vllm-v1",
        f"release='{release}'",
        f"model={model}",
        f"gpu={gpu}",
        "server.num_gpus=1",
        "model.max_len=32768",
        "++model.weight_bits=2",
        "policy=grouped_caching_v1",
        "policy.watermark=0",
        f"server.kv_memory_gib={{{model}: 20}}",
        "server.num_blocks=null",
        "null_blocks=0",
    ]


def found_by(words, contents, gap_s=30, output_len=8):
    outputs = [output_len] * (len(contents) - 1) + [8]  # no prompt finds the last one
    requests = [
        Request(i, round(i * gap_s * 1e12), length, output, prompt_ids=ids, tokens_per_id=IDS)
        for i, ((length, ids), output) in enumerate(zip(contents, outputs, strict=True))
    ]
    config = front_end().configure(words, {"trace": requests})
    hits = run(config).requests["hit_tokens"]
    return config.policy.parameters["block_size"], [int(tokens) for tokens in hits]


CACHE = "--enable-prefix-caching"  # off by default in 0.19


@pytest.mark.parametrize(
    ("budget", "shared", "long"),
    [
        (1024, [0] + [5488] * 5, [0] + [11760] * 3),
        (2048, [0] + [4704] * 5, [0] + [10976] * 3),
        (4096, [0] + [3920] * 5, [0] + [11760] * 3),
        (6272, [0] * 6, [0] + [6272] * 3),
        (8192, [0] * 6, [0] + [7840] * 3),
        (16384, [0] * 6, [0] * 4),
    ],
)
def test_in_0_19_a_state_is_found_where_a_chunk_ended(budget, shared, long):
    options = (CACHE, f"--max-num-batched-tokens {budget}")
    for gpu in ("h100-80gb", "a100-80gb"):
        assert found(SHARED, QWEN35, gpu, "0.19", *options) == (784, shared)
    assert found(LONG, QWEN35, "h100-80gb", "0.19", *options) == (784, long)
    growing = [0, 3920, 5488, 6272]
    assert found(GROWING, QWEN35, "h100-80gb", "0.19", *options) == (784, growing)


@pytest.mark.parametrize(
    ("gpu", "block_size", "shared", "long", "growing"),
    [
        ("a100-80gb", 784, [0, 0] + [5488] * 4, [0, 0] + [11760] * 2, [0, 3920, 5488, 6272]),
        ("h100-80gb", 832, [0, 0] + [5824] * 4, [0, 0] + [11648] * 2, [0, 3328, 4992, 6656]),
        ("b200", 832, [0, 0] + [5824] * 4, [0, 0] + [11648] * 2, [0, 3328, 4992, 6656]),
    ],
)
def test_in_0_33_a_shared_prefix_is_found_from_the_third_prompt_on(
    gpu, block_size, shared, long, growing
):
    assert found(SHARED, QWEN35, gpu, "0.33") == (block_size, shared)
    assert found(LONG, QWEN35, gpu, "0.33") == (block_size, long)
    assert found(GROWING, QWEN35, gpu, "0.33") == (block_size, growing)


def test_flash_attention_has_longer_blocks_for_these_heads_on_blackwell():
    # vLLM's own run without FlashInfer, which its requirements install and which a B200 prefers.
    option = "--attention-backend FLASH_ATTN"
    assert found(SHARED, QWEN35, "b200", "0.33", option) == (896, [0, 0] + [5376] * 4)
    assert found(LONG, QWEN35, "b200", "0.33", option) == (896, [0, 0] + [11648] * 2)
    assert found(GROWING, QWEN35, "b200", "0.33", option) == (896, [0, 3584, 5376, 6272])
    assert found(SHARED, QWEN35, "h100-80gb", "0.33", option)[0] == 832


def test_in_0_33_the_tokens_of_a_batch_change_nothing():
    for budget in (1024, 2048, 16384):
        option = f"--max-num-batched-tokens {budget}"
        assert found(SHARED, QWEN35, "h100-80gb", "0.33", option)[1] == [0, 0] + [5824] * 4


@pytest.mark.parametrize(
    ("model", "gpu", "release", "block_size", "shared", "long", "growing"),
    [
        (NEMOTRON, "h100-80gb", "0.19", 640, [0] + [5760] * 5, None, None),
        (
            NEMOTRON,
            "h100-80gb",
            "0.33",
            1040,
            [0, 0] + [5200] * 4,
            [0, 0] + [11440] * 2,
            [0, 3120, 5200, 6240],
        ),
        (NEXT, "h100-80gb", "0.19", 544, [0] * 6, [0] + [8160] * 3, [0, 3808, 5440, 6528]),
        (
            NEXT,
            "h100-80gb",
            "0.33",
            576,
            [0, 0] + [5760] * 4,
            [0, 0] + [11520] * 2,
            [0, 3456, 5184, 6912],
        ),
        (
            NEXT,
            "a100-80gb",
            "0.33",
            544,
            [0, 0] + [5984] * 4,
            [0, 0] + [11968] * 2,
            [0, 3808, 5440, 6528],
        ),
        (QWEN35_SMALL, "h100-80gb", "0.19", 528, [0] * 6, None, None),
        (QWEN35_SMALL, "h100-80gb", "0.33", 576, [0, 0] + [5760] * 4, None, None),
        (QWEN35_SMALL, "a100-80gb", "0.33", 528, [0, 0] + [5808] * 4, None, None),
    ],
)
def test_prefixes_of_each_model(model, gpu, release, block_size, shared, long, growing):
    words = preset(model, gpu, release)
    for contents, hits in ((SHARED, shared), (LONG, long), (GROWING, growing)):
        if hits is not None:
            assert found_by(words, contents) == (block_size, hits)


def test_fp8_values_make_the_block_longer():
    hits = found(SHARED, QWEN35, "h100-80gb", "0.33", "--kv-cache-dtype fp8")
    assert hits == (1600, [0, 0] + [4800] * 4)


def test_short_prompts():
    assert found(SHORT, QWEN35, "h100-80gb", "0.19", CACHE)[1] == [0] * 5
    assert found(SHORT, QWEN35, "h100-80gb", "0.33")[1] == [0, 0, 1664, 1664, 1664]
    older, newer = (preset(NEMOTRON, "h100-80gb", release) for release in ("0.19", "0.33"))
    assert found_by(older, SHORT)[1] == [0] + [1920] * 4
    assert found_by(newer, SHORT)[1] == [0, 0, 1040, 1040, 1040]


def test_prompts_that_arrive_together_wait_for_states_of_the_same_step():
    assert found(SHARED, QWEN35, "h100-80gb", "0.19", CACHE, gap_s=0)[1] == [0] * 6
    assert found(SHARED, QWEN35, "h100-80gb", "0.33", gap_s=0)[1] == [0, 0] + [5824] * 4


@pytest.mark.parametrize(
    ("gpu", "hits"),
    [("a100-80gb", [0, 3920, 5488, 7056]), ("h100-80gb", [0, 3328, 5824, 7488])],
)
def test_in_0_33_a_turn_finds_the_prompt_before_it_and_nothing_of_the_answer(gpu, hits):
    assert found(CHAT, QWEN35, gpu, "0.33", gap_s=600, output_len=1700)[1] == hits


def test_a_kernel_that_exports_no_states_is_refused_in_place_of_one_that_does():
    command = f"vllm serve {QWEN35} --max-num-seqs 64 --gdn-prefill-backend triton"
    sheet, checkpoint = gpu_named("h100-80gb"), Checkpoint(read_model("qwen3.5-27b"))
    with pytest.raises(InputError, match="gdn-prefill-backend triton"):
        server_with(read_command(command), checkpoint, sheet, RELEASES["0.33"])
    for gpu, release in (("h100-80gb", "0.19"), ("a100-80gb", "0.33")):
        sheet = gpu_named(gpu)
        server = server_with(read_command(command), checkpoint, sheet, RELEASES[release])
        assert server.pages.block_size == 784


def test_qwen3_next_on_four_gpus_has_blocks_of_320_tokens():
    words = expand(
        "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 4 --max-num-seqs 64",
        ["gpu=h100-80gb", "release='0.33'"],
    )
    assert "policy.block_size=320" in words


def test_prefixes_of_states_are_cached_by_default_since_0_28():
    for release, caches in (("0.19", False), ("0.28", True), ("0.33", True)):
        words = expand(
            f"vllm serve {QWEN35} --max-num-seqs 64", ["gpu=h100-80gb", f"release='{release}'"]
        )
        assert ("policy=grouped_caching_v1" in words) == caches


@pytest.mark.parametrize(
    ("gib", "gpu", "release", "pool"),
    [
        (18.23146, "h100-80gb", "0.33", (359, 832, 7.33)),
        (18.23146, "a100-80gb", "0.33", (381, 784, 7.94)),
        (20.96, "h100-80gb", "0.33", (412, 832, 8.41)),
        (17.131, "h100-80gb", "0.19", (358, 784, 7.46)),
    ],
)
def test_a_pool_that_caches_states_has_the_pages_of_vllm_s_planner(gib, gpu, release, pool):
    size = f"--kv-cache-memory-bytes {int(gib * GIB)} --max-model-len 32768 --max-num-seqs 64"
    fit = fit_of(f"vllm serve {QWEN35} {size} {CACHE}", gpu, RELEASES[release])
    assert (fit.num_blocks, fit.block_size, round(fit.max_concurrency, 2)) == pool


def test_in_0_19_a_turn_finds_the_answer_before_it():
    """A state is kept at each block of decoding; 1,700 tokens are an answer, 200 a question."""
    each, limits = 4, "--max-model-len 32768 --max-num-seqs 64"
    words = expand(f"vllm serve {QWEN35} {limits} {CACHE}", ["gpu=h100-80gb", "release='0.19'"])
    turns, said = [], ()
    outputs = (1700, 1700, 1700, 8)  # no turn finds the last one
    for turn, length in enumerate((4000, 5900, 7800, 9700)):
        ids = (*said, *range(10**6 * turn, 10**6 * turn + length // each - len(said)))
        first = 10**8 * (turn + 1)  # of what it answers
        answer = range(first + len(ids), first + len(ids) + 1700 // each)
        said = (*ids, *answer)
        arrival_ps = turn * 600 * 10**12
        named = {"prompt_ids": ids, "tokens_per_id": each, "answer_id": first}
        turns.append(Request(turn, arrival_ps, length, outputs[turn], **named))
    config = front_end().configure(words, {"trace": turns})
    assert run(config).requests["hit_tokens"].tolist() == [0, 5488, 7056, 9408]
