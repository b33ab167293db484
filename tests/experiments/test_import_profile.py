"""import-profile: LLMServingSim's CSVs by hand, our own JSON checked, and a profile that a run can be priced with."""

import json

import pytest
from import_fixtures import DENSE, write_csv, write_gpu, write_llmservingsim, write_model

from experiments.commands import import_profile
from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost, read_profile


@pytest.fixture
def imported(tmp_path):
    here, out = write_llmservingsim(tmp_path), tmp_path / "profile.json"
    model, gpu = write_model(tmp_path), write_gpu(tmp_path)
    import_profile.main([str(here), "--out", str(out), "--model", str(model), "--gpu", str(gpu)])
    return out


def points(profile, section):
    return {tuple(row[:-1]): row[-1] for row in profile["sections"][section]["points"]}


def test_a_layer_is_the_sum_of_its_kernels(imported):
    profile = read_profile(imported)
    layer = DENSE["layernorm"] + sum(us for name, us in DENSE.items() if name not in ("embedding", "final_layernorm"))
    assert points(profile, "linear") == {(1,): layer, (64,): 2 * layer}
    assert points(profile, "once_per_iteration") == {(1,): 1.0, (64,): 2.0}
    assert points(profile, "output_head") == {(1,): 10.0, (64,): 10.0}


def test_batches_are_padded_as_vllm_pads_and_a_coarse_grid_has_no_stairs(imported, tmp_path):
    profile = read_profile(imported)
    assert profile["cuda_graph_sizes"][:5] == [1, 2, 4, 8, 16]
    assert profile["cuda_graph_sizes"][-2:] == [496, 512]
    assert "between" not in profile["sections"]["linear"]
    here = tmp_path / "tp1"
    dense = [[name, tokens, us * (1 + tokens // 17)] for name, us in DENSE.items() for tokens in (1, 16, 32)]
    write_csv(here / "dense.csv", "layer,tokens,time_us", dense)
    out = tmp_path / "fine.json"
    import_profile.main([str(here), "--out", str(out), "--model", str(tmp_path / "toy.json")])
    assert read_profile(out)["sections"]["linear"]["between"] == "next"


def test_a_decode_reads_the_token_that_it_writes_too(imported):
    profile = read_profile(imported)
    assert points(profile, "decode_attention")[8, 8 * 16] == 2 + 8 * 15 / 128
    assert points(profile, "mixed_attention")[128, 256, 8, 256] == 2 + 2 + 1 + 8 * 255 / 128
    assert (0, 0, 8, 16) not in points(profile, "mixed_attention")


def test_bins_of_two_lengths_become_bins_of_the_mean(imported):
    section = read_profile(imported)["sections"]["unequal_lengths"]
    # 40% of lengths four times the others: the mean is (1 + 3 x 0.4) / 4 of the longest; -1.5 is noise.
    assert section["points"] == [[0, 0, 8, 55, 1024, 0.3], [0, 0, 8, 100, 1024, 0.0]]
    assert section["default"] == 0.05


def test_an_iteration_is_what_its_parts_are(imported):
    profile = read_profile(imported)
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile)
    layer = DENSE["layernorm"] + sum(us for name, us in DENSE.items() if name not in ("embedding", "final_layernorm"))
    assert cost.iteration(Work(1, 16, 16)) == pytest.approx(1e6 * (2 * (layer + 2 + 15 / 128) + 1 + 10), abs=2)
    assert cost.iteration(Work(8, 128, 16, 0, ((128, 256),))) > cost.iteration(Work(8, 128, 16))


def test_it_says_what_is_missing_and_how_far_it_reached(tmp_path, capsys):
    here = write_llmservingsim(tmp_path)
    (here / "skew_fit.csv").unlink()
    import_profile.main([str(here), "--out", str(tmp_path / "p.json"), "--model", str(write_model(tmp_path))])
    said = capsys.readouterr().out
    assert "outside the grid: contexts up to the model's 512, 2.0 x as far" in said
    assert "missing: skew_fit.csv" in said
    assert "missing: software times" in said
    assert "missing: the data sheet of Toy GPU" in said
    assert read_profile(tmp_path / "p.json")["gpu"] is None


def test_a_shard_of_two_is_chosen_by_its_degree(tmp_path):
    for degree in (1, 2):
        write_llmservingsim(tmp_path, degree)
    arguments = [str(tmp_path), "--out", str(tmp_path / "p.json"), "--model", str(write_model(tmp_path))]
    with pytest.raises(InputError, match="holds the degrees 1, 2; say which by --tensor-parallel"):
        import_profile.main(arguments)
    import_profile.main([*arguments, "--tensor-parallel", "2"])
    assert read_profile(tmp_path / "p.json")["num_gpus"] == 2


def test_what_is_no_profile_is_named(tmp_path):
    out = ["--out", str(tmp_path / "p.json")]
    with pytest.raises(InputError, match="no such folder"):
        import_profile.main([str(tmp_path / "nowhere"), *out])
    with pytest.raises(InputError, match="not a profile of LLMServingSim, AIConfigurator, our own JSON"):
        import_profile.main([str(tmp_path), *out])
    here = write_llmservingsim(tmp_path)
    with pytest.raises(InputError, match=r"no meta\.yaml says which model this is; say it by --model"):
        import_profile.main([str(here), *out])
    write_csv(here / "dense.csv", "layer,tokens,time_us", [["qkv_proj", 1, 2.0]])
    with pytest.raises(InputError, match="no times of layernorm"):
        import_profile.main([str(here), *out, "--model", str(write_model(tmp_path))])


def test_our_own_json_is_checked_and_comes_out_the_same(imported, tmp_path):
    again = tmp_path / "again.json"
    import_profile.main([str(imported), "--out", str(again)])
    assert json.loads(again.read_text()) == json.loads(imported.read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["sections"]["linear"]["points"].append([1, "slow"]), "section linear, point 3: 'slow' is not"),
        (lambda p: p["sections"]["linear"]["points"].append([1]), r"point 3: \[1\] is not 1 axis values and a time"),
        (lambda p: p["sections"].clear(), "has no sections"),
        (lambda p: p.update(format=7), "profile format 7, this version reads 1"),
        (lambda p: p["model"].pop("ffn_size"), "model must have"),
        (lambda p: p.update(num_gpus=0), "num_gpus is 0"),
    ],
)
def test_a_bad_profile_is_refused_by_name(imported, tmp_path, change, message):
    profile = json.loads(imported.read_text())
    change(profile)
    imported.write_text(json.dumps(profile))
    with pytest.raises(InputError, match=message):
        import_profile.main([str(imported), "--out", str(tmp_path / "again.json")])
