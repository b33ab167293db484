"""Values that a later word or an override replaces are said; what runs stays as documented."""

from functools import partial

import pytest

from testbed import simulate, sweep
from testbed.experiments.cli.list import class_and_about
from testbed.experiments.runs.choice_names import files_of
from testbed.experiments.runs.compose import composed
from testbed.experiments.sglang_server import translation as of_sglang
from testbed.experiments.vllm_server import translation as of_vllm
from testbed.experiments.vllm_server.answer import NO_WATERMARK, WITH_WATERMARK
from testbed.run.constructor_parameters import parameters_of
from testbed.run.override_words import displaced_words
from testbed.run.parts import locate

GPU = "gpu=h100-80gb"
COMMAND = "vllm serve Qwen/Qwen3-8B -tp 2 --data-parallel-size 4 --num-gpu-blocks-override 9000"


def notes_of(expand, command, *words):
    """The notes on what replaces a value."""
    notes = list[str]()
    expand(command, [GPU, *words], notes.append)
    return [note for note in notes if " in place of " in note]


@pytest.mark.parametrize(
    ("word", "replaced"),
    [
        ("model=llama-3.1-8b", "Qwen/Qwen3-8B"),
        ("server.num_gpus=4", "--tensor-parallel-size 4 in place of 2"),
        ("server.num_blocks=8000", "--num-gpu-blocks-override 8000 in place of 9000"),
        ("replicas=2", "--data-parallel-size 2 in place of 4"),
        ("replicas=null", "--data-parallel-size 1 in place of 4"),
    ],
)
def test_an_override_says_what_of_the_command_it_replaces(word, replaced):
    [note] = notes_of(of_vllm.expand, COMMAND, word)
    assert replaced in note
    assert note.count(" in place of ") == 1


def test_overrides_that_agree_with_the_command_replace_nothing():
    agreeing = ("model=Qwen/Qwen3-8B", "server.num_gpus=2", "replicas=4", "server.num_blocks=9000")
    assert notes_of(of_vllm.expand, COMMAND, *agreeing) == []
    assert notes_of(of_vllm.expand, "vllm serve Qwen/Qwen3-8B", "server.num_gpus=2") == []


def test_a_command_leaves_what_overrides_replace_among_themselves_to_the_command_line():
    words = ("arrivals.rate=4", "arrivals.rate=8")
    assert notes_of(of_vllm.expand, "vllm serve Qwen/Qwen3-8B", *words) == []


def test_sglangs_command_too():
    command = "sglang serve --model-path Qwen/Qwen3-8B"
    [note] = notes_of(of_sglang.expand, command, "model=llama-3.1-8b")
    assert "Qwen/Qwen3-8B" in note
    assert notes_of(of_sglang.expand, command) == []


def test_fits_says_that_another_model_stands_in(testbed):
    words = ("fits", "vllm serve Qwen/Qwen3-8B", GPU)
    assert "in place of Qwen/Qwen3-8B" in testbed(*words, "model=llama-3.1-8b")[2]
    assert "in place of" not in testbed(*words)[2]


@pytest.mark.parametrize(
    ("words", "options", "note"),
    [
        (["seed=1", "seed=2"], {}, "seed=2 in place of seed=1"),
        (["arrivals.rate=4"], {"rate": 2}, "arrivals.rate=2 in place of arrivals.rate=4"),
        (["policy=paged"], {"policy": "contiguous_max"}, "policy=contiguous_max in place of "),
        (["seed=1"], {"seed": 1, "rate": None}, ""),
        (["policy=paged"], {"rate": 2}, ""),
    ],
)
def test_python_says_it_too_once(capsys, words, options, note):
    words = ["arrivals.duration_s=1", *words]
    one, several = dict(options), {**options, "num_seqs": [1, 2]}
    for call in (partial(simulate, *words, **one), partial(sweep, *words, jobs=1, **several)):
        call()
        printed = capsys.readouterr().err
        assert (note in printed, printed.count(" in place of ")) == (True, bool(note))


def test_a_key_that_is_given_twice_is_said():
    words = ("run", "arrivals.rate=4", "seed=1", "+arrivals.rate=8", "seed=1", "-m", "--figure=a")
    [note] = displaced_words(words)
    assert note.startswith("+arrivals.rate=8 in place of arrivals.rate=4")


def test_the_replicas_that_run_are_those_that_the_start_says():
    notes = list[str]()
    words = of_vllm.expand(COMMAND, [GPU, "replicas=2"], notes.append)
    assert [word for word in words if word.startswith("replicas=")] == ["replicas=2"]
    [said] = [note for note in notes if " replicas (" in note]
    assert "2 replicas" in said


def expanded(*words):
    """The words beside a command, and the notes on them."""
    notes = list[str]()
    found = of_vllm.expand("vllm serve Qwen/Qwen3-8B", [GPU, *words], notes.append)
    return found, " ".join(notes)


@pytest.mark.parametrize("word", ["policy=paged_2023", "policy.watermark=0.02"])
def test_a_policy_with_a_watermark_is_not_said_to_have_none(word):
    assert "no watermark" in expanded()[1]
    assert "no watermark" not in expanded(word)[1]


def test_policies_that_ship_admit_as_the_server_beside_its_command():
    """The paper's watermark of 1% is none of vLLM V1's; its own version of vLLM keeps it."""
    classes = {
        name: class_and_about(file)[0] or composed("run", [f"policy={name}"]).policy._target_
        for name, file in files_of("policy").items()
        if name != "custom"
    }
    defaults = {
        name: parameters_of(locate(cls, "policy")).defaults for name, cls in classes.items()
    }
    kept = {name for name, of in defaults.items() if of.get("watermark")}
    assert kept == {*WITH_WATERMARK, "paged_2023"}
    for name in WITH_WATERMARK:
        words, notes = expanded(f"policy={name}")
        assert words.count(NO_WATERMARK) == 1
        assert "no watermark" in notes
    assert "policy.watermark=0.01" in expanded("policy=paged", "policy.watermark=0.01")[0]
    assert NO_WATERMARK not in expanded("policy=paged", "policy.watermark=0.01")[0]


@pytest.mark.parametrize(("blocks", "is_said"), [(512, True), (513, False)])  # one is null
@pytest.mark.parametrize("in_command", [True, False])
def test_blocks_that_do_not_hold_the_longest_sequence_are_said(blocks, is_said, in_command):
    option, word = f" --num-gpu-blocks-override {blocks}", f"server.num_blocks={blocks}"
    command = f"vllm serve Qwen/Qwen3-8B --max-model-len 8192{option if in_command else ''}"
    notes = list[str]()
    of_vllm.expand(command, [GPU, *([] if in_command else [word])], notes.append)
    assert any("hold 8,176" in note for note in notes) == is_said
    assert any("never run" in note for note in notes) == is_said
