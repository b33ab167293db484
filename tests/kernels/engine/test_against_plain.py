"""Choices of two paths are compared if they had the same tokens before."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402

from testbed.kernels.engine.architecture import Architecture  # noqa: E402
from testbed.kernels.engine.verify.against_one_gpu import judge  # noqa: E402
from testbed.kernels.engine.verify.against_plain import (  # noqa: E402
    by_tokens,
    compare,
    comparison,
    largest_difference,
)

PLAIN = by_tokens(
    [
        ((1,), torch.tensor([0.0, 3.0, 1.0])),
        ((1, 1), torch.tensor([2.0, 1.75, 0.0])),
        ((1, 1, 0), torch.tensor([5.0, 0.0, 0.0])),
    ]
)
CLOSE = by_tokens(
    [
        ((1,), torch.tensor([0.0, 3.0, 1.25])),
        ((1, 1), torch.tensor([1.75, 2.0, 0.0])),
        ((1, 1, 1), torch.tensor([0.0, 9.0, 0.0])),
    ]
)


def test_another_choice_is_right_where_both_are_about_as_likely():
    tolerance = 2 * largest_difference(PLAIN, CLOSE)
    compared = comparison(PLAIN, CLOSE, tolerance)
    assert compared == (2, 1, 0.25, 0.5, None)
    assert compared.is_right


def test_another_choice_is_wrong_where_one_was_clearly_best():
    wrong = CLOSE | {(1,): torch.tensor([4.0, 3.0, 1.0])}
    compared = comparison(PLAIN, wrong, 0.5)
    assert (compared.differing, compared.largest_margin) == (2, 2.0)
    assert not compared.is_right


@pytest.mark.parametrize("tokens", list(PLAIN.keys() & CLOSE.keys()))
def test_a_logit_that_is_no_number_is_wrong_wherever_it_stands(tokens):
    broken = PLAIN | {tokens: torch.full((3,), float("nan"))}
    assert not comparison(PLAIN, broken, 0.5).is_right
    assert not judge(PLAIN, broken, 0.5).is_right
    assert not largest_difference(PLAIN, broken) <= 0.5
    partly = PLAIN | {tokens: PLAIN[tokens].where(PLAIN[tokens] != 1.0, float("nan"))}
    assert judge(PLAIN, partly, 0.5).is_right == (not partly[tokens].isnan().any())


def test_nothing_in_common_is_not_right():
    assert not comparison(PLAIN, {}, 0.5).is_right


def test_drafts_and_launches_ahead_choose_what_the_plain_path_chooses():
    arch = Architecture(replace(tiny.SHAPES["llama"], max_len=512), "llama")
    compared = dict(compare(arch, tiny.weights(arch)))
    assert [*compared] == ["launched ahead", "drafts by n-grams", "drafts by the model itself"]
    for choices, differing, *_ in compared.values():
        assert choices > 400
        assert differing == 0
