"""A broken scheduler is caught by `testbed check`, its clause named and its requests shown; that
ours keep the contract is tested in tests/plug_ins/test_checked_parts.py.
"""

import pytest
from broken_schedulers import BROKEN

import testbed

SIZES = {"num_slots": 131, "max_len": 80, "host_slots": 60, "max_num_seqs": 2}


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("name", BROKEN)
def test_the_broken_clause_is_named_with_the_requests(name):
    kind, clause = BROKEN[name]
    broken = testbed.check(kind, **SIZES)
    assert broken is not None, "no clause was broken"
    assert broken.clause == clause, str(broken)
    assert 2 <= len(broken.calls) <= 12


def test_the_fewest_requests_are_shown():
    broken = testbed.check(BROKEN["LosesARequest"][0], **SIZES)
    assert len(broken.calls) == 2
    assert broken.calls[1].startswith("request 5 at")
