"""Clause 13: the version of a sequence is raised if its table changes before its end."""

from functools import partial

import pytest
from left_out_lines import without

from testbed.checks.contract.questions import Questions
from testbed.checks.contract.search import check_policy
from testbed.memory.capabilities import Capabilities
from testbed.memory.paged.paged import Paged
from testbed.memory.radix.radix import Radix


@pytest.mark.parametrize(
    ("owner", "name", "line", "policy"),
    [
        (Capabilities, "fork", "child.change_table()", partial(Paged, block_size=4)),
        (Questions, "extend", "batch.changes += bool(answer.ops.copies)", Paged),
        (Radix, "_give_up_own", "held.seq.change_table()", partial(Radix, block_size=4)),
    ],
    ids=["fork", "copies", "publish"],
)
def test_a_change_that_raises_no_version_breaks_the_contract(
    monkeypatch, owner, name, line, policy
):
    assert check_policy(policy, max_examples=5) is None
    monkeypatch.setattr(owner, name, without(getattr(owner, name), line))
    broken = check_policy(policy, max_examples=200, shrink=False)
    assert broken is not None
    assert broken.clause == 13
