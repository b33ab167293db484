"""The debug mode names who touched a slot that is not theirs; it is clean on all policies in the other tests."""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import faulty_policies as faults  # noqa: E402
import tiny_models as tiny  # noqa: E402

from testbed.kernels.engine.slot_checker import SlotError  # noqa: E402
from testbed.sched.preemption import Recompute, Swap  # noqa: E402


@pytest.mark.parametrize(
    ("policy", "num_seqs", "message"),
    [
        (faults.ForgottenCopy, 2, r"step 2: sequence \d of request 0 reads slot \d+ as its token 8; it holds nothing"),
        (faults.DoubleOwner, 1, r"step 2: sequence 0 of request 0 reads slot \d+ .* sequence 1 of request 1 wrote"),
        (faults.WritesShared, 2, r"step 2: sequence 0 of request 0 reads slot \d+ as its token 9; it holds token 9"),
        (faults.WrongSwapIn, 1, r"step \d+: sequence \d of request \d reads slot \d+ as its token 0; it holds token 4"),
    ],
    ids=["forgotten copy", "double owner", "write to a shared block", "swap-in to the wrong slot"],
)
def test_planted_faults_are_caught(policy, num_seqs, message):
    rule = Swap() if policy is faults.WrongSwapIn else Recompute()
    engine = tiny.engine("opt", partial(policy, block_size=4), partial(tiny.mixed, preemption=rule), tiny.pool(88, 256))
    with pytest.raises(SlotError, match=message):
        engine.serve(tiny.requests(faults.LENGTHS, num_seqs))


def test_slots_without_an_owner_are_nan():
    engine = tiny.engine("opt")
    engine.serve(tiny.requests(faults.LENGTHS))
    assert torch.isnan(engine.runner.attention.pools.device).all()
