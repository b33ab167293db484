"""`--from-sglang`: what a command of SGLang's server is as overrides, and what it refuses."""

from importlib.util import find_spec

import pytest
from refusals import check_refusal, refuses

from testbed.experiments.sglang_server.translation import expand
from testbed.sglang.command import PARSER, parser_options
from testbed.sglang.server import FLAGS, HARMLESS, OVERRIDES, READ, chunk_by_gpu, running_requests

MODEL = "sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct"
GPU = ("gpu=h100-80gb",)


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
        ("vllm serve x", ("--from-sglang", "sglang serve")),
        (f"{MODEL} --max-totl-tokens 3", ("--max-totl-tokens", "no option")),
        (f"{MODEL} --max-total-tokens", ("--max-total-tokens", "no value")),
        (f"{MODEL} --max-total-tokens many", ("--max-total-tokens many", "whole number")),
        (f"{MODEL} --mem-fraction-static 0.8", ("--mem-fraction-static", "not modelled")),
        (f"{MODEL} --enable-dp-attention", ("--enable-dp-attention", "not modelled")),
        (MODEL, ("--max-total-tokens", "log")),
    ],
)
def test_what_is_unknown_or_not_modelled_is_refused(command, words):
    check_refusal(words, expand, command, GPU)


def test_limits_by_the_gpu_and_the_pool():
    assert [chunk_by_gpu(gib) for gib in (16, 24, 40, 80, 141, 180)] == [
        2048,
        4096,
        4096,
        8192,
        8192,
        16384,
    ]
    assert running_requests(None, 400_000, 8192) == 4096
    assert running_requests(None, 40_000, 131_072) == 2048
    assert running_requests(None, 1000, 8192) == 500
    assert running_requests(64, 40_000, 8192) == 64


def test_all_options_that_are_read_are_options_of_the_release():
    firsts = {first for first, _ in parser_options().values()}
    assert not {*OVERRIDES, *FLAGS, *READ, *HARMLESS} - firsts


@pytest.mark.skipif(find_spec("sglang") is None, reason="sglang 0.5.23 is not installed")
def test_the_list_of_options_is_that_of_the_installed_parser():
    from testbed.experiments.sglang_server.parser import installed_options

    assert PARSER.read_text(encoding="utf-8") == installed_options()
