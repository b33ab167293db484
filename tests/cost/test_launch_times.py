"""Times in which the host launches iterations, by hand, from the sections of a profile."""

import pytest
from arithmetic_profile import MODEL, arithmetic_profile, section

from testbed.cost.launch_slowness import LaunchSlowness
from testbed.cost.model import Launch
from testbed.cost.profile import Choices, ProfileCost

PS_PER_US = 10**6
DECODES = section(
    "part num_seqs", [["first", 1, 4.0], ["first", 9, 12.0], ["whole", 1, 6.0], ["whole", 9, 22.0]]
)
PROMPTS = section(
    "part num_tokens num_seqs",
    [
        [part, tokens, seqs, us]
        for part, tokens, seqs, us in (
            ("first", 64, 1, 30.0),
            ("whole", 64, 1, 500.0),
            ("first", 512, 1, 90.0),
            ("first", 512, 3, 110.0),
            ("whole", 512, 1, 900.0),
            ("whole", 512, 3, 1000.0),
        )
    ],
)


def launch_us(counts, **sections):
    """Until the GPU has its first work, and until it has all, in us."""
    cost = ProfileCost(MODEL, None, arithmetic_profile(**sections), Choices())
    launch = cost.launch(*counts)
    return launch and (launch.first_ps / PS_PER_US, launch.whole_ps / PS_PER_US)


@pytest.mark.parametrize(
    ("num_seqs", "expected"), [(1, (4, 6)), (5, (8, 14)), (9, (12, 22)), (40, (12, 22))]
)
def test_launches_of_decodes_are_linear_between_numbers_of_sequences(num_seqs, expected):
    assert launch_us((num_seqs, 0, 0), launch_decodes=DECODES) == expected


def test_decodes_are_launched_no_longer_than_they_compute():
    slow = section("part num_seqs", [["first", 1, 7000.0], ["whole", 1, 9000.0]])
    cost = ProfileCost(MODEL, None, arithmetic_profile(launch_decodes=slow), Choices())
    assert cost.launch(3, 0, 0) == Launch(cost.least(3), cost.least(3))
    assert launch_us((0, 1, 3), launch_decodes=slow) == (7000, 9000)  # prompts are not limited


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((0, 1, 10), (30, 500)),  # as the next measured number of tokens
        ((0, 1, 64), (30, 500)),
        ((60, 1, 5), (110, 1000)),  # 65 tokens of 61 sequences
        ((1, 1, 100), (100, 950)),
        ((0, 1, 4000), (90, 900)),  # beyond the last
    ],
)
def test_launches_of_prompts_are_those_of_the_next_number_of_tokens(counts, expected):
    assert launch_us(counts, launch_prompts=PROMPTS, launch_decodes=DECODES) == expected


@pytest.mark.parametrize(
    ("counts", "expected"), [((60, 1, 5), 1300), ((60, 1, 4), 0), ((3, 0, 0), 0), ((65, 0, 0), 0)]
)
def test_numbers_of_tokens_beyond_the_graphs_take_longer_the_first_time(counts, expected):
    sections = {"launch_prompts": PROMPTS, "launch_decodes": DECODES}
    sections["launch_unseen"] = section("num_tokens", [[65, 1300.0]])
    cost = ProfileCost(MODEL, None, arithmetic_profile(**sections), Choices())
    assert cost.launch(*counts).unseen_ps == expected * PS_PER_US
    slower = cost.varied(launches=1.5, computing=1.0)
    assert slower.launch(*counts).unseen_ps == 1.5 * expected * PS_PER_US


@pytest.mark.parametrize(
    ("now_ms", "expected"),
    [(0, 3), (9.9, 3), (10, 1), (29.9, 1), (30, 2), (49.9, 2), (50, 3), (110, 1)],
)
def test_launches_are_as_slow_as_the_host_at_that_moment_over_and_over(now_ms, expected):
    points = section("moment_ms", [[0, 3.0], [10, 1.0], [30, 2.0]])
    cost = ProfileCost(MODEL, None, arithmetic_profile(launch_slowness=points), Choices())
    launch, now_ps = Launch(2, 4, 6), round(now_ms * 10**9)
    slowed = Launch(2 * expected, 4 * expected, 6 * expected)
    assert cost.slowness.slowed(launch, now_ps) == slowed
    varied = cost.varied(launches=1.5, computing=2.0, begun=0.2)  # of 50 ms
    assert varied.slowness.slowed(launch, now_ps - 10**10) == slowed
    assert LaunchSlowness([((0,), 10**6)]).slowed(launch, now_ps) == launch


def test_what_a_profile_has_no_section_of():
    assert launch_us((3, 0, 0)) is None
    assert launch_us((3, 0, 0), launch_prompts=PROMPTS) == (0, 0)
    assert launch_us((4, 1, 100), launch_decodes=DECODES) == (8, 14)
