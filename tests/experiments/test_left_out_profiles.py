"""A profile that is left out is predicted from the others alone, and a prediction that is the truth has no error."""

from dataclasses import replace

import pytest

from testbed.cost.nearest import Known, profiles_at_hand
from testbed.experiments.importers.known_shapes import gpu_named
from testbed.experiments.validation import left_out


@pytest.fixture(scope="module")
def shipped():
    return {one.profile["model"]["name"]: one for one in profiles_at_hand(None, [gpu_named("h200")])}


def test_it_is_predicted_from_the_others_by_every_way(shipped):
    rows = {row["way"]: row for row in left_out.tested(list(shipped.values()), [shipped["llama-3-8b"]])}
    assert set(rows) == {"other model", "roofline"}
    found = rows["other model"]
    assert found["source_model"] != "llama-3-8b"
    assert 0 < found["decode_percent"] < 15
    assert abs(found["ttft_percent"]) < 15


def test_the_same_times_on_a_gpu_of_the_same_data_sheet_have_no_error(shipped):
    one = shipped["llama-3-8b"]
    fingerprint = {**one.profile["fingerprint"], "device": "twin"}
    twin = Known(
        {**one.profile, "fingerprint": fingerprint}, replace(one.gpu, name="twin", device="twin", transfers=None)
    )
    (row,) = [row for row in left_out.tested([one, twin], [twin]) if row["way"] == "other GPU"]
    assert (row["source_model"], row["source_gpu"]) == ("llama-3-8b", "h200")
    assert list(row.values())[9:] == pytest.approx([0.0] * 7, abs=0.1)
