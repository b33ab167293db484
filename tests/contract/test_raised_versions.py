"""Clause 13: the version of a sequence is raised if its table changes before its end."""

from functools import partial

import pytest
from unraised import unraised

from testbed.checks.contract.questions import Questions
from testbed.checks.contract.search import check_policy
from testbed.memory.capabilities import Capabilities
from testbed.memory.paged.paged import Paged
from testbed.memory.radix.radix import Radix


def of_child(capabilities, parent, child):
    return [(child, "_changes")]


def of_batch(questions, batch, num_tokens):
    return [(batch, "changes")]


def of_held(radix, held):
    return [(held.seq, "_changes")]


@pytest.mark.parametrize(
    ("owner", "name", "versions_of", "policy"),
    [
        (Capabilities, "fork", of_child, partial(Paged, block_size=4)),
        (Questions, "extend", of_batch, Paged),
        (Radix, "_give_up_own", of_held, partial(Radix, block_size=4)),
    ],
    ids=["fork", "copies", "publish"],
)
def test_a_change_that_raises_no_version_breaks_the_contract(
    monkeypatch, owner, name, versions_of, policy
):
    monkeypatch.setattr(owner, name, unraised(getattr(owner, name), versions_of))
    broken = check_policy(policy, max_examples=200, shrink=False)
    assert broken is not None
    assert broken.clause == 13
