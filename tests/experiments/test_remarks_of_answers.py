"""Remarks that an answer carries: overload, assumptions, what takes memory, whose server it is."""

import io
import json
import re
from contextlib import redirect_stdout

import pytest

from testbed.core.errors import DoesNotStart
from testbed.core.specs import GIB
from testbed.experiments.cli.main import main
from testbed.experiments.runs.compose import configured
from testbed.experiments.sglang_server.translation import expand as expand_sglang
from testbed.experiments.vllm_server.answer import fit_of, lines_of
from testbed.experiments.vllm_server.translation import expand
from testbed.run.simulate import run

LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384"
EAGLE = (
    f"""{LLAMA} --speculative-config '{{"method": "eagle3", "num_speculative_tokens": 3, """
    """"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}'"""
)
NGRAM = f"""{LLAMA} --speculative-config '{{"method": "ngram", "num_speculative_tokens": 3}}'"""
SGLANG = "sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct"
LOAD = ("gpu=h100-80gb", "trace=random", "outputs=summary")


def fit(command, gpu="h100-80gb"):
    return fit_of(command, gpu)


@pytest.fixture(scope="module")
def lines_of_sweep(tmp_path_factory):
    """Lines of a small sweep over a server with drafts and one without, at a rate that each keeps
    and one that neither does.
    """
    load = (*LOAD, "trace.input_len=8000", "trace.output_len=2", "arrivals.rate=1,30")
    words = ("--from-vllm", LLAMA, "--from-vllm", EAGLE, *load, "arrivals.duration_s=2")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(tmp_path_factory.mktemp("sweep"))
        patch.delenv("COLUMNS", raising=False)  # as in a pipe
        assert main(["run", "-m", *words, "--seeds", "2", "--quiet"]) == 0
    return printed.getvalue().splitlines()


def test_a_sweep_names_the_settings_that_are_overloaded(lines_of_sweep):
    overloaded = [line for line in lines_of_sweep if "overloaded" in line]
    assert len(overloaded) == 2
    assert all("arrivals.rate=30: overloaded on 2 of 2 seeds" in line for line in overloaded)


def test_a_long_command_leaves_room_for_the_numbers(lines_of_sweep):
    heads = [line for line in lines_of_sweep if "command" in line and "TPOT p50, s" in line]
    assert len(heads) == 2  # of the means, and of the differences
    assert max(map(len, heads)) <= 180


def test_the_costs_say_that_the_acceptance_is_assumed_even_if_notes_are_quiet(lines_of_sweep):
    [line] = [line for line in lines_of_sweep if "assumed if none is given" in line]
    assert "probability 0.7" in line
    words = expand(EAGLE, [*LOAD, "arrivals.duration_s=2", "speculation.acceptance.rate=0.8"])
    assert "assumed" not in run(configured(words)).summary["run"]["cost_error"]


@pytest.mark.parametrize("release", ["0.19", "0.33"])
def test_the_costs_say_that_drafts_are_assumed_to_be_found(release):
    load = (*LOAD, f"release={release}", "arrivals.rate=1", "arrivals.duration_s=2")

    def said(command, *words):
        taken = run(configured(expand(command, [*load, *words]))).summary["run"]["cost_error"]
        return "speculation.found_share=1" in taken

    assert said(NGRAM)
    assert not said(NGRAM, "speculation.found_share=0.5")
    assert not said(EAGLE)


@pytest.mark.parametrize("command", [EAGLE, NGRAM])
@pytest.mark.parametrize(
    ("given", "is_accepted", "is_found"),
    [
        ((), True, True),
        (("speculation.acceptance.rate=0.7",), False, True),
        (("acceptance@speculation.acceptance=per_position",), False, True),
        (("speculation.found_share=0.3",), True, False),
    ],
)
def test_notes_on_drafts_name_as_assumed_what_is_not_given(command, given, is_accepted, is_found):
    """An EAGLE drafter drafts at every position: nothing is assumed of that."""
    looks_up = command is NGRAM
    notes = list[str]()
    expand(command, [*LOAD, *given], notes.append)
    assumed = [note for note in notes if "an assumption" in note]
    assert any("speculation.acceptance.rate" in note for note in assumed) == is_accepted
    named = any("speculation.found_share" in note for note in assumed)
    assert named == (is_found and looks_up)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--enable-lora", f"{LLAMA} --enable-lora --max-loras 2 --max-lora-rank 16"),
        ("--enable-lora", f"{LLAMA} --enable-lora --max-loras 8 --max-lora-rank 64"),
        ("--speculative-config", EAGLE),
    ],
)
def test_what_takes_memory_says_how_many_tokens_it_takes(option, words):
    taken, plain = fit(words), fit(LLAMA).kv_tokens
    assert taken.kv_tokens_without == {option: plain}
    (line,) = (line for line in lines_of(taken) if line.startswith(f"  without {option}"))
    assert line.endswith(f"{plain - taken.kv_tokens:,}")
    if taken.adapters_gib:
        of_bytes = taken.adapters_gib * 2**30 / taken.block_size / (128 << 10)
        assert abs(of_bytes - (plain - taken.kv_tokens) / taken.block_size) <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{LLAMA} --kv-cache-dtype fp8", "it gives "),
        (f"{LLAMA} --kv-cache-dtype fp8 --gpu-memory-utilization 0.235", "does not start"),
        (f"{LLAMA} --kv-cache-dtype auto", ""),
    ],
)
def test_an_fp8_cache_says_how_many_tokens_it_gives(words, said):
    fp8, option = fit(words), "--kv-cache-dtype"
    lines = [line for line in lines_of(fp8) if line.startswith(f"  without {option}")]
    assert (len(lines), all(said in line for line in lines)) == (bool(said), True)
    assert 2 * fp8.kv_tokens_without.get(option, 0) in (0, fp8.kv_tokens)


def test_a_given_pool_loses_no_tokens():
    words = f"{LLAMA} --num-gpu-blocks-override 2000 --enable-lora"
    assert fit(words).kv_tokens_without == {}


def test_blocks_that_flexattention_serves_are_named():
    """As vLLM 0.19 warns; run on a CPU, its platform takes FLEX_ATTENTION for 24 and 8 tokens."""
    for size in (8, 24):
        assert any(
            "FlexAttention" in line for line in lines_of(fit(f"{LLAMA} --block-size {size}"))
        )
    assert not any("FlexAttention" in line for line in lines_of(fit(f"{LLAMA} --block-size 48")))


def test_a_share_of_the_memory_is_raised_only_if_that_can_help():
    with pytest.raises(DoesNotStart, match="raise --gpu-memory-utilization or"):
        fit("vllm serve Qwen/Qwen3-32B --gpu-memory-utilization 0.7")
    with pytest.raises(DoesNotStart) as stopped:
        fit("vllm serve deepseek-ai/DeepSeek-V3")
    assert "--gpu-memory-utilization" not in str(stopped.value)


def test_answers_name_the_model_and_the_workload(testbed):
    load = ("gpu=h100-80gb", "model=llama-3.1-8b", "trace=random", "arrivals.duration_s=2")
    search = ("slo.ttft_s=0.2", "--seeds", "1", "--precision", "0.5", "--quiet")
    search += ("--low", "20", "--high", "60")
    answer = testbed("capacity", *load, *search)[1]
    assert answer.startswith("llama-3.1-8b on 1 x h100-80gb; requests: random")
    about = json.loads(testbed("capacity", *load, *search, "--json")[1])["about"]
    assert about.startswith("llama-3.1-8b on 1 x h100-80gb")
    plan = testbed("plan", *load, "arrivals.rate=2", "slo.ttft_s=1", "--seeds", "1", "--quiet")[1]
    assert "model: llama-3.1-8b; requests: random" in plan
    hits = testbed("hits", "trace=chat_histories", "model=llama-3.1-8b", "--sizes", "100")[1]
    assert hits.startswith("trace: chat histories")
    assert "of llama-3.1-8b" in hits


def test_prefill_apart_says_where_the_time_of_its_hand_overs_is(testbed):
    served = ("--from-vllm", f"{LLAMA} --no-async-scheduling", *LOAD, "replicas=2")
    line = ("run", *served, "arrivals.rate=2", "arrivals.duration_s=2")
    alone = testbed(*line, "prefill_replicas=1")[1]
    assert "not in TTFT" in " ".join(alone.split())
    links = ("prefill_replicas=1", "handover=whole", "handover.bandwidth=50e9,1e9")
    for printed in (alone, testbed(*line, "-m", *links)[1]):
        (times,) = re.findall(r"hand-over takes .*not measured", " ".join(printed.split()))
        assert "on 50 GB/s" in times
    assert "on 1 GB/s" in times
    remarks = [
        sum(text.startswith("prefill apart: ") for text in printed.splitlines())
        for words in ("prefill_replicas=null,1", "seed=0,1")
        for printed in [testbed(*line, "-m", words)[1]]
    ]
    assert remarks == [1, 0]
    search = ("slo.ttft_s=1", "--seeds", "1", "--precision", "1", "--low", "20", "--high", "60")
    search += ("arrivals.duration_s=2", "--json")
    found = json.loads(testbed("capacity", *line[1:-2], "prefill_replicas=1", *search)[1])
    assert re.search("not in TTFT.* on 50 GB/s", found["first_tokens"])


@pytest.mark.parametrize(
    ("command", "words", "remark"),
    [
        (f"{LLAMA} --no-async-scheduling", [], ": each iteration waits for its launch"),
        (f"{LLAMA} --no-async-scheduling", ["cost.iterations=null"], " takes no time"),
        (f"{LLAMA} --no-async-scheduling", ["gpu=l40s"], " takes no time"),
        (f"{SGLANG} --disable-overlap-schedule", [], " takes no time"),
    ],
)
def test_the_costs_say_what_synchronous_scheduling_takes(command, words, remark):
    server, option = command.rsplit(" ", 1)
    assert f"{option}{remark}" in cost_error(command, words)
    assert option not in cost_error(server, words)


def cost_error(command, words):
    """The error of the costs of a small run of a server."""
    of_command = expand_sglang if command.startswith("sglang") else expand
    load = [*LOAD, "arrivals.rate=1", "arrivals.duration_s=1"]
    return run(configured(of_command(command, [*load, *words]))).summary["run"]["cost_error"]


def test_launches_that_nothing_hides_lengthen_each_iteration():
    words = [*LOAD, "arrivals.rate=4", "arrivals.duration_s=5"]
    hidden, waits = (
        run(configured(expand(command, words))).summary["tpot_s"]["p50"]
        for command in (LLAMA, f"{LLAMA} --no-async-scheduling")
    )
    assert 0.0015 < waits - hidden < 0.004  # a launch of few decodes takes 2 to 3 ms


def test_the_error_of_an_activation_has_its_sign_in_words():
    """In the start-up with 64 sequences of measured.csv more was logged than is computed."""
    lines = "\n".join(lines_of(fit(f"{LLAMA} --max-num-seqs 64")))
    assert "GiB more of activation than is computed here, so its pool was smaller" in lines
    assert "GiB of activation either way" in "\n".join(lines_of(fit(LLAMA)))


QWEN = "vllm serve Qwen/Qwen2.5-72B-Instruct -tp 2"


def test_a_pool_with_less_to_spare_than_its_error_may_not_start():
    fullest = fit(f"{QWEN} --max-model-len 5264", "a100-80gb")
    assert fullest.spare_gib == 0
    assert fullest.may_not_start
    assert "it may not start" in "\n".join(lines_of(fullest))
    sure = fullest.longest_model_len_with_error
    shorter = fit(f"{QWEN} --max-model-len {sure}", "a100-80gb")
    assert not shorter.may_not_start
    assert "may not start" not in "\n".join(lines_of(shorter))
    assert fit(f"{QWEN} --max-model-len {sure + 16}", "a100-80gb").may_not_start


def test_the_pool_has_fewer_tokens_by_the_error_of_its_memory():
    taken = fit(LLAMA, "l40s")
    fewer = taken.memory_error_gib * GIB / (taken.kv_cache_gib * GIB / taken.kv_tokens)
    assert taken.kv_tokens_fewer == pytest.approx(fewer, abs=taken.block_size)
    assert f"{taken.kv_tokens:,} tokens, {taken.kv_tokens_fewer:,} fewer" in "\n".join(
        lines_of(taken)
    )


def test_a_given_pool_has_no_error():
    given = fit(f"{LLAMA} --kv-cache-memory-bytes 20G")
    assert (given.memory_error_gib, given.kv_tokens_fewer, given.spare_gib) == (None,) * 3
    assert not given.may_not_start


def test_the_remedies_of_a_refusal_start_with_margin_or_say_that_they_have_none():
    with pytest.raises(DoesNotStart) as caught:
        fit(f"{QWEN} --max-model-len 5280", "a100-80gb")
    assert "5264 with no memory to spare" in str(caught.value)
    [degree] = re.findall(r"--tensor-parallel-size (\d+) starts", str(caught.value))
    assert not fit(f"{QWEN} --max-model-len 5280 -tp {degree}", "a100-80gb").may_not_start


def test_a_parallelism_without_margin_is_no_remedy():
    """With the pool of two GPUs one request of 5,264 tokens has none to spare; four have it."""
    command = "vllm serve Qwen/Qwen2.5-72B-Instruct --max-model-len 5264"
    assert fit(f"{command} -tp 2", "a100-80gb").may_not_start
    with pytest.raises(DoesNotStart, match="--tensor-parallel-size 4 starts"):
        fit(command, "a100-80gb")


@pytest.mark.parametrize("word", ["gpu=h100-80gb,h200", "release=0.19,0.33"])
def test_several_values_are_refused_by_the_key(testbed, word):
    code, printed, error = testbed("fits", LLAMA, "gpu=h100-80gb", word)
    assert (code, printed) == (2, "")
    assert f"{word}: " in error
    assert word.partition(",")[0] in error.partition("(")[2]
