"""import profile: whole folders of LLMServingSim, the shards that they have, and those that are
refused.
"""

import pytest
from import_fixtures import (
    DENSE,
    attention_us,
    write_csv,
    write_gpu,
    write_llmservingsim,
    write_model,
)
from refusals import refuses

from testbed.core.errors import InputError
from testbed.cost.profile import PROFILES, read_profile
from testbed.experiments.cli.main import call
from testbed.experiments.real.importers import llmservingsim


@pytest.fixture
def imported(tmp_path, capsys):
    """The sections of a profile, as points by axes, and what is printed; times of layers are
    proportional to tokens.
    """
    dense = [
        [name, n, us * n]
        for name, us in {**DENSE, "qk_norm": 0.125, "moe": 0.0}.items()
        for n in (1, 8, 24)
    ]
    here = write_llmservingsim(tmp_path)
    write_csv(here / "dense.csv", "layer,tokens,time_us", dense)
    rows = [[name, n, 7.0 * n] for name in ("lm_head", "sampler") for n in (1, 17, 34)]
    write_csv(here / "per_sequence.csv", "layer,sequences,time_us", rows)
    skew = [
        [16, f"n<={n}", f"sr{skew}", longest, "kp=0", share, 4]
        for n, skew, longest, share in (
            (8, "<=40%", "kvB<=16k", 1.0),
            (4, ">70%", "kvB>16k", 1.5),
            (8, "<=70%", "kvB<=16k", 0.0),
        )
    ]
    write_csv(
        here / "skew_fit.csv",
        "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples",
        skew,
    )
    model, gpu = str(write_model(tmp_path)), str(write_gpu(tmp_path))
    out = tmp_path / "p.json"
    call(
        "import profile", [str(tmp_path / "tp1"), "--out", str(out), "--model", model, "--gpu", gpu]
    )
    return read_profile(out)["sections"], capsys.readouterr().out


def points_of(section):
    return {tuple(point[:-1]): point[-1] for point in section["points"]}


def test_times_of_layers_are_added(imported):
    """A layer has two norms; the embedding and the last norm are once an iteration."""
    sections, _ = imported
    once = DENSE["embedding"] + DENSE["final_layernorm"]
    layer = sum(DENSE.values()) - once + DENSE["layernorm"] + 0.125  # its qk_norm
    assert points_of(sections["linear"]) == {(n,): layer * n for n in (1, 8, 24)}
    assert points_of(sections["once_per_iteration"]) == {(n,): once * n for n in (1, 8, 24)}
    assert points_of(sections["output_head"]) == {(n,): 2 * 7.0 * n for n in (1, 17, 34)}


def test_attention_is_by_the_stored_tokens_and_the_new_one(imported):
    sections, _ = imported
    assert points_of(sections["decode_attention"]) == {
        (seqs, seqs * (kv + 1)): attention_us(0, 0, seqs, kv) for seqs in (1, 8) for kv in (15, 255)
    }
    mixed = points_of(sections["mixed_attention"])
    assert len(mixed) == 2 * 2 * 5
    assert mixed[16, 256, 0, 0] == attention_us(16, 256, 0, 0)
    assert mixed[128, 256, 8, 256] == attention_us(128, 256, 8, 255)


def test_bins_of_unequal_lengths_are_named_by_their_upper_edges_and_cut_at_one(imported):
    """A long context of n<=4 has no upper edge; its share of 1.5 is noise."""
    sections, output = imported
    unequal = sections["unequal_lengths"]
    assert unequal["default"] == 0.05
    assert points_of(unequal) == {
        (16, 0, 4, 100, 2**31 - 1): 1.0,
        (16, 0, 8, 55, 16384): 1.0,
        (16, 0, 8, 78, 16384): 0.0,
    }
    assert "1 of the bins lie outside 0 to 1" in output


def test_ends_of_the_grid_and_missing_measurements_are_reported(imported):
    _, output = imported
    for words in (
        "linear: up to 24 tokens an iteration",
        "not used: moe",
        "contexts up to the model's 512, 2.0 x as far",
        "missing: software times",
        "missing: swaps",
        "missing: block copies",
        f"up to {llmservingsim.GRAPHS[-1]} (",
    ):
        assert words in output


def test_tensor_parallel_degree_selects_the_shard(tmp_path):
    for degree in (1, 2):
        write_llmservingsim(tmp_path, degree)
    (tmp_path / "tp4").mkdir()
    arguments = [
        str(tmp_path),
        "--out",
        str(tmp_path / "p.json"),
        "--model",
        str(write_model(tmp_path)),
    ]
    refuses(
        r"has the degrees 1, 2 \(choose one with --tensor-parallel\)",
        call,
        "import profile",
        arguments,
    )
    call("import profile", [*arguments, "--tensor-parallel", "2"])
    assert read_profile(tmp_path / "p.json")["num_gpus"] == 2


def test_folder_without_a_profile_is_refused(tmp_path):
    out = ["--out", str(tmp_path / "p.json")]
    refuses("nowhere: ", call, "import profile", [str(tmp_path / "nowhere"), *out])
    refuses(
        r"not a profile of .*LLMServingSim, AIConfigurator",
        call,
        "import profile",
        [str(tmp_path), *out],
    )
    here = write_llmservingsim(tmp_path)
    refuses(
        r"no meta\.yaml says which model this is",
        call,
        "import profile",
        [str(here), *out],
    )
    out += ["--model", str(write_model(tmp_path))]
    for row in ([16, 0, 1, 15, 9.0], [0, 0, 1, 15, 9.0]):
        write_csv(
            here / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", [row]
        )
        refuses(
            r"attention\.csv: ",
            call,
            "import profile",
            [str(here), *out],
        )
    write_csv(here / "dense.csv", "layer,tokens,time_us", [["qkv_proj", 1, 2.0]])
    refuses(r"dense\.csv: ", call, "import profile", [str(here), *out])


def test_a_profile_of_this_project_is_not_imported_under_another_name(tmp_path):
    shipped = str(PROFILES / "h200-qwen2.5-0.5b-tp1.json")
    refuses(
        "needs no import",
        call,
        "import profile",
        [shipped, "--out", str(tmp_path / "p.json"), "--model=opt-13b"],
    )
    assert not (tmp_path / "p.json").exists()


def test_a_folder_keeps_the_model_and_the_device_that_it_names(tmp_path):
    here = write_llmservingsim(tmp_path)
    out = ["--out", str(tmp_path / "p.json")]
    (tmp_path / "meta.yaml").write_text("gpu: NVIDIA H200\nmodel: meta-llama/Llama-3.1-8B\n")
    with pytest.raises(InputError, match="tp1: "):
        call("import profile", [str(here), *out, "--model", str(write_model(tmp_path))])
    refuses(
        "tp1: ",
        call,
        "import profile",
        [str(here), *out, "--gpu", "l4"],
    )
    call("import profile", [str(here), *out, "--gpu", "h200"])
    assert read_profile(tmp_path / "p.json")["model"]["name"] == "llama-3.1-8b"
