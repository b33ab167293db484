"""Blocks that a command asks for and layers with windows do not have, as vLLM 0.33's own classes
give or refuse them on torch's meta device, in 4 GiB of cache.
"""

import json

import pytest
from refusals import refuses

from testbed.experiments.real.lockstep.model_configs import FAMILIES
from testbed.experiments.vllm_server.answer import fit_of
from testbed.vllm.releases import release_numbered

CONFIGS = json.loads(FAMILIES.read_text(encoding="utf-8"))
SMALL, OTHER_SMALL = "--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e5m2"


def _fit(folder, family, words, gpu):
    (folder / "config.json").write_text(json.dumps(CONFIGS[family]))
    command = f"vllm serve {folder} --kv-cache-memory-bytes 4G {words}"
    return fit_of(command, gpu, release_numbered("0.33"))


@pytest.mark.parametrize(
    ("words", "gpu", "num_blocks", "tokens"),
    [
        ("--block-size 128", "b200", 8192, 520223),
        (f"--block-size 48 {SMALL}", "a100-80gb", 32768, 1667300),
        (f"--block-size 128 {OTHER_SMALL}", "h100-80gb", 16384, 1040447),
        ("--block-size 128 --attention-backend FLASHINFER", "h100-80gb", 8192, 520223),
        (f"--block-size 128 {SMALL}", "h100-80gb", 8192, 1032444),  # FlashAttention's
        ("--block-size 128", "l40s", 4096, 818400),
    ],
)
def test_flashinfer_has_windows_in_blocks_of_at_most_64_tokens(
    tmp_path, words, gpu, num_blocks, tokens
):
    found = _fit(tmp_path, "qwen2-windows", words, gpu)
    assert (found.num_blocks, found.kv_tokens) == (num_blocks, tokens)


@pytest.mark.parametrize(
    ("family", "words", "gpu"),
    [
        ("gemma3", "--block-size 96", "b200"),
        ("olmo3", f"--block-size 48 {SMALL}", "l40s"),
        ("gemma4", f"--block-size 80 {SMALL}", "h100-80gb"),
    ],
)
def test_pages_of_two_sizes_are_not_modelled(tmp_path, family, words, gpu):
    refuses("not modelled", _fit, tmp_path, family, words, gpu)


def test_pages_of_whole_blocks_of_windows_are_as_large_as_those_of_full_attention(tmp_path):
    found = _fit(tmp_path, "gemma3", "--block-size 128", "b200")
    assert (found.num_blocks, found.kv_tokens) == (16384, 258608)


@pytest.mark.parametrize("family", ["deepseek-v3.2", "glm-moe-dsa"])
@pytest.mark.parametrize("size", [32, 96])
def test_an_indexer_reads_blocks_of_64_tokens(tmp_path, family, size):
    refuses("multiples of 64", _fit, tmp_path, family, f"--block-size {size}", "b200")
