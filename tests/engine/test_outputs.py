"""The outputs to come, if one ends before its length: as an engine that samples decides it."""

import pytest
from manual_driver import ITERATION_LEVEL, ManualDriver, paged, scheduler_of

from testbed.core.request import Request
from testbed.sched.preemption import Recompute


def driver_of(kind, *requests):
    """A driver that has computed the prompts, and their groups."""
    driver = ManualDriver(scheduler_of(kind, paged(), Recompute()))
    groups = [driver.add(request) for request in requests]
    driver.step()
    return driver, groups


@pytest.mark.parametrize("kind", ITERATION_LEVEL)
def test_an_output_that_ends_early_ends_with_the_next_token(kind):
    driver, (early, other) = driver_of(kind, Request(0, 0, 4, 20), Request(1, 0, 4, 7))
    driver.step()
    driver.outputs.end_with_next(early)
    assert driver.outputs.requests[0].output_len == driver.outputs.lengths[0] == 3
    assert driver.outputs.steps_to_change() == 1
    assert driver.step()[1].finished == [early]
    assert early.num_generated == 3
    while other.num_generated < 6:
        assert not driver.step()[1].finished
    assert driver.step()[1].finished == [other]


def test_an_output_ends_with_several_tokens_at_once_or_with_its_first():
    driver, (group,) = driver_of(ITERATION_LEVEL[0], Request(0, 0, 4, 20))
    driver.outputs.end_with_next(group, 4)
    assert driver.outputs.lengths[0] == 5
    later = driver.add(Request(1, 0, 4, 20))
    driver.outputs.end_with_next(later)
    plan = driver.plan()
    assert [chunk.group for chunk in plan.chunks] == [later]
    assert driver.carry_out(plan).finished == [later]
