"""How a plain request's time goes to requests, sequences and forks: by a formula, and by the kept rows."""

import pytest

from testbed.core.errors import InputError
from testbed.experiments.commands.fit import fit_constants
from testbed.experiments.paper.fits import PLAIN_S, forks_a_step, kept_us, shares_us, split
from testbed.experiments.runs.compose import configured

KINDS = [("parallel", 1), ("parallel", 4), ("beam", 4), ("beam", 6)]


def sampler(group, sequence, fork):
    return {
        (name, width): group + sequence * width + (fork * forks_a_step(width) if name == "beam" else 0)
        for name, width in KINDS
    }


def test_a_formula_s_shares_are_found_and_scaled_to_a_plain_request():
    """100 us a group, 10 a sequence, 30 a fork; with the scheduler's 20 a sequence a plain request takes 130 us."""
    us = sampler(100, 10, 30)
    assert shares_us(us) == pytest.approx((100, 10, 30))
    found = split(us, 260e-6)
    assert found.host == pytest.approx(2)
    assert (found.request_s, found.sequence_s) == pytest.approx((200e-6, 60e-6))
    assert found.sequences_per_fork == pytest.approx((30 + 110 / forks_a_step(6)) / 30)


def test_the_figures_use_what_the_kept_rows_say(capsys):
    cost = configured(("+protocol=sosp23", "+system=vllm")).cost.parameters["choices"].parameters
    found = split(kept_us())
    assert cost["overhead_per_request_s"] + cost["overhead_per_sequence_s"] == pytest.approx(PLAIN_S)
    assert cost["overhead_per_sequence_s"] == pytest.approx(found.sequence_s, rel=0.005)
    assert cost["sequences_per_fork"] == pytest.approx(found.sequences_per_fork, rel=0.01)
    fit_constants(["sampler"])
    assert "parallel 1: 143 us of the sampler; costs 1.00 plain requests" in capsys.readouterr().out


def test_rows_of_one_number_of_groups_have_no_slope(tmp_path):
    (tmp_path / "rows.csv").write_text("# where\nkind,width,groups,median_us\nparallel,1,8,1000\n")
    with pytest.raises(InputError, match="one number of groups"):
        kept_us(tmp_path / "rows.csv")
