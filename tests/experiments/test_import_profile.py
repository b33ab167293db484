"""import profile: whole folders of LLMServingSim, the shards that they have, and those that are
refused.
"""

import pytest
from import_fixtures import DENSE, write_csv, write_gpu, write_llmservingsim, write_model
from kept import check_text
from refusals import refuses

from testbed.core.errors import InputError
from testbed.cost.profile import PROFILES, read_profile
from testbed.experiments.cli.main import call
from testbed.experiments.importers import llmservingsim
from testbed.experiments.importers.imported import source


def test_the_whole_profile_and_what_is_said_of_it(tmp_path, request, capsys):
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
    assert f"up to {llmservingsim.GRAPHS[-1]} (" in source(llmservingsim.NAME)["notes"][1]
    model, gpu = str(write_model(tmp_path)), str(write_gpu(tmp_path))
    out = tmp_path / "p.json"
    call(
        "import profile", [str(tmp_path / "tp1"), "--out", str(out), "--model", model, "--gpu", gpu]
    )
    check_text(capsys.readouterr().out.replace(str(tmp_path), "") + out.read_text(), request)


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
    refuses("no such folder", call, "import profile", [str(tmp_path / "nowhere"), *out])
    refuses(
        r"not a profile of .*LLMServingSim, AIConfigurator",
        call,
        "import profile",
        [str(tmp_path), *out],
    )
    here = write_llmservingsim(tmp_path)
    refuses(
        r"no meta\.yaml says which model this is; say it by --model",
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
            "lacks decodes alone, or prompts together with decodes",
            call,
            "import profile",
            [str(here), *out],
        )
    write_csv(here / "dense.csv", "layer,tokens,time_us", [["qkv_proj", 1, 2.0]])
    refuses("no times of layernorm", call, "import profile", [str(here), *out])


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
    with pytest.raises(
        InputError, match=r"is of llama-3\.1-8b, whose shape is not that of --model toy"
    ):
        call("import profile", [str(here), *out, "--model", str(write_model(tmp_path))])
    refuses(
        "was measured on NVIDIA H200, which is not --gpu l4",
        call,
        "import profile",
        [str(here), *out, "--gpu", "l4"],
    )
    call("import profile", [str(here), *out, "--gpu", "h200"])
    assert read_profile(tmp_path / "p.json")["model"]["name"] == "llama-3.1-8b"
