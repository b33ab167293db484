"""`testbed fits` of this project's engine."""

import json

import pytest

LLAMA = (
    "testbed run engine=gpu model=llama-3-8b server.num_gpus=2 ~server.kv_memory_gib "
    "server.num_blocks=61204 swap_space_gib=0"
)


def test_the_parts_of_an_engine_are_those_of_each_gpu(testbed):
    code, out, _ = testbed("fits", LLAMA, "gpu=h200", "--json")
    fit = json.loads(out)
    assert code == 0
    held = fit["held_gib"]
    assert held["weights"] == pytest.approx(8.03e9 * 2 / 2 / 2**30, rel=0.002)
    assert held["kv_cache"] == pytest.approx(61204 * 16 * 2 * 32 * 4 * 128 * 2 / 2**30)
    assert fit["total_gib"] == pytest.approx(sum(held.values()) + fit["other_gib"])
    code, out, _ = testbed("fits", LLAMA, "gpu=h200")
    assert f"together {fit['total_gib']:.2f}" in " ".join(out.split())
    assert "does not fit" not in out


def test_what_is_more_than_a_gpu_has_is_said(testbed):
    _, out, _ = testbed("fits", LLAMA.replace("=61204", "=72500"), "gpu=h100-80gb")
    assert "does not fit: the GPU has 79.16" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model=opt-13b", "engine=gpu"),
        ("model=opt-13b engine=gpu engine.device=cpu", "engine on GPUs"),
        ("model=opt-13b engine=gpu 'x", "No closing quotation"),
        ("model=opt-13b engine=gpu server.num_gpus=3", "must be divisible"),
        ("model=opt-13b engine=gpu nonsense=1", "no key 'nonsense'"),
    ],
)
def test_other_words_are_refused(testbed, words, message):
    assert message in testbed.refused("fits", f"testbed run {words}", "gpu=h100-80gb")
