"""Decodes beside prompts, by hand: what they take beyond their tokens and their own attention."""

import pytest
from arithmetic_profile import MODEL, arithmetic_profile, section

from testbed.cost.model import Work
from testbed.cost.profile import Choices, ProfileCost

PS_PER_US = 10**6
BESIDE = section(
    "num_tokens num_seqs", [[64, 1, 10.0], [64, 5, 30.0], [512, 1, 100.0], [512, 5, 500.0]]
)


def more_us(work):
    """The time of an iteration with the section over that without."""
    with_it, without = (
        ProfileCost(MODEL, None, arithmetic_profile(**sections), Choices()).iteration(work)
        for sections in ({"decodes_beside_prompts": BESIDE}, {})
    )
    return (with_it - without) / PS_PER_US


@pytest.mark.parametrize(
    ("decodes", "new", "expected"),
    [
        (1, 10, 10),
        (3, 61, 20),  # 64 tokens
        (3, 62, 300),  # as the next measured number of tokens
        (9, 20, 30),  # level beyond the most decodes
        (5, 4000, 500),  # and beyond the most tokens
    ],
)
def test_decodes_take_more_beside_prompts(decodes, new, expected):
    assert more_us(Work(decodes, decodes, 1, prefill=((new, 0),))) == expected


@pytest.mark.parametrize("work", [Work(3, 3, 1), Work(prefill=((100, 0),))])
def test_decodes_alone_and_prompts_alone_take_no_more(work):
    assert more_us(work) == 0
