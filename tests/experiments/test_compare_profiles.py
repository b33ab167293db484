"""compare-profiles: a profile beside itself, one with other times, other grids and other models."""

from copy import deepcopy

import numpy as np
import pytest
from import_fixtures import write_llmservingsim, write_model

from experiments.commands import import_profile
from experiments.commands.import_profile import dump
from experiments.validation.profile_comparison import compare
from testbed.core.errors import InputError
from testbed.cost.profile import read_profile


@pytest.fixture
def profile(tmp_path):
    out = tmp_path / "p.json"
    here = write_llmservingsim(tmp_path)
    import_profile.main([str(here), "--out", str(out), "--model", str(write_model(tmp_path))])
    return read_profile(out)


def by_section(first, second):
    return {one.section: one for one in compare(first, second)}


def test_a_profile_is_itself(profile):
    found = by_section(profile, profile)
    assert list(found) == ["linear", "output_head", "decode_attention", "decode iteration"]
    assert all(not one.outside and not one.errors.any() for one in found.values())
    shipped = read_profile("h200-opt-13b-tp1")
    assert max(one.percent(np.max) for one in compare(shipped, shipped)) == 0


def test_errors_are_shares_of_the_reference_at_its_shapes(profile):
    other = deepcopy(profile)
    other["sections"]["linear"]["points"] = [[n, us / 2] for n, us in profile["sections"]["linear"]["points"]]
    assert by_section(profile, other)["linear"].errors.tolist() == pytest.approx([1, 1])
    other["sections"]["linear"]["points"] += [[128, 1.0], [256, 1.0]]
    found = by_section(profile, other)["linear"]
    assert (len(found.errors), found.outside) == (2, 2)
    assert by_section(other, profile)["linear"].outside == 0
    del other["sections"]["linear"]
    assert "linear" not in by_section(profile, other)
    assert "decode iteration" not in by_section(profile, other)


def test_a_longer_or_wider_batch_than_was_measured_lies_outside(profile):
    other = deepcopy(profile)
    other["sections"]["decode_attention"]["points"] += [[9, 9 * 16, 3.0], [8, 8 * 300, 30.0], [4, 4 * 100, 5.0]]
    found = by_section(profile, other)["decode_attention"]
    assert (len(found.errors), found.outside) == (5, 2)


def test_other_models_are_refused(testbed, tmp_path, profile):
    with pytest.raises(InputError, match=r"are of toy on 1 GPU\(s\) and of opt-13b on 1 GPU\(s\)"):
        list(compare(profile, read_profile("h200-opt-13b-tp1")))
    path = tmp_path / "again.json"
    path.write_text(dump(profile))
    code, said, err = testbed("compare-profiles", str(path), str(path))
    assert (code, err) == (0, "")
    assert "decode iteration" in said
    code, _, err = testbed("compare-profiles", "nowhere", str(path))
    assert code == 2
    assert "no profile nowhere" in err
