"""compare-profiles: a profile beside itself, one with other times, other grids and other models."""

from copy import deepcopy

import numpy as np
import pytest
from import_fixtures import write_profile

from testbed.core.errors import InputError
from testbed.cost.profile import read_profile
from testbed.cost.sections import dump
from testbed.experiments.validation.profile_comparison import compare


@pytest.fixture
def profile(tmp_path):
    return read_profile(write_profile(tmp_path))


def by_section(first, second):
    return {one.section: one for one in compare(first, second)}


def test_profile_compared_with_itself_has_no_error(profile):
    found = by_section(profile, profile)
    assert list(found) == ["linear", "output_head", "decode_attention", "decode iteration"]
    assert all(not one.outside and not one.errors.any() for one in found.values())
    shipped = read_profile("h200-opt-13b-tp1")
    assert max(one.percent(np.max) for one in compare(shipped, shipped)) == 0


def test_errors_are_relative_to_the_reference_profile(profile):
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


def test_shapes_beyond_the_measured_grid_count_as_outside(profile):
    other = deepcopy(profile)
    other["sections"]["decode_attention"]["points"] += [[9, 9 * 16, 3.0], [8, 8 * 300, 30.0], [4, 4 * 100, 5.0]]
    found = by_section(profile, other)["decode_attention"]
    assert (len(found.errors), found.outside) == (5, 2)


def test_profiles_of_different_models_are_refused(testbed, tmp_path, profile):
    with pytest.raises(InputError, match=r"are of toy on 1 GPU\(s\) and of opt-13b on 1 GPU\(s\)"):
        list(compare(profile, read_profile("h200-opt-13b-tp1")))
    path = tmp_path / "again.json"
    path.write_text(dump(profile))
    code, reported, err = testbed("compare-profiles", str(path), str(path))
    assert (code, err) == (0, "")
    assert "decode iteration" in reported
    code, _, err = testbed("compare-profiles", "nowhere", str(path))
    assert code == 2
    assert "no profile nowhere" in err
