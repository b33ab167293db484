"""Drafts that a GPU looks up: as many at each step, of which fillers are rejected."""

import pytest

from testbed.speculation.acceptance import Constant
from testbed.speculation.ngram import NGram
from testbed.speculation.ngram_gpu import NGramGpu

POSITIONS = range(1, 400)


def test_every_step_has_all_drafts():
    speculation = NGramGpu(num_drafts=4, found_share=0.1)
    assert {speculation.num_drafts(7, position, 1) for position in POSITIONS} == {4}
    assert speculation.num_lookahead == 0


@pytest.mark.parametrize("found_share", [0.3, 0.7])
def test_drafts_are_found_at_a_share_of_the_positions_of_each_request(found_share):
    speculation = NGram(num_drafts=4, found_share=found_share)
    for request_id in range(5):
        found = [speculation.num_drafts(request_id, at, 1) == 4 for at in POSITIONS]
        assert sum(found) / len(found) == pytest.approx(found_share, abs=0.1)


@pytest.mark.parametrize("found_share", [0.0, 0.3, 1.0])
def test_drafts_are_accepted_where_the_cpu_would_have_found_some(found_share):
    on_gpu = NGramGpu(num_drafts=4, found_share=found_share, acceptance=Constant(1.0))
    on_cpu = NGram(num_drafts=4, found_share=found_share)
    accepted = [on_gpu.acceptance.accepted(7, position, 4) for position in POSITIONS]
    assert accepted == [on_cpu.num_drafts(7, position, 1) for position in POSITIONS]


def test_the_rule_of_the_drafts_decides_behind_a_find():
    speculation = NGramGpu(num_drafts=4, acceptance=Constant(0.5))
    plain = Constant(0.5)
    for position in POSITIONS:
        found = speculation.acceptance.accepted(7, position, 4)
        assert found == plain.accepted(7, position, 4)
