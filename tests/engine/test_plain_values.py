"""A plug-in's own objects in place of numbers could read the values they are compared with: they
are refused unread.
"""

import pytest
from altered import changed
from manual_driver import scheduler_of
from refusals import refuses
from tiny import FastMillisecond

from testbed.checks.contract.search import check_policy
from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import Extent, Granular, Growth
from testbed.cost.model import Affine
from testbed.engine.simulation import simulate
from testbed.memory.contiguous.reservations import ContiguousOracle
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

PROMPT_LEN, OUTPUT_LEN = 10, 83
COMPARED = []


def listening(name):
    def method(this, other):
        COMPARED.append(int(other))
        answer = getattr(int, name)(this, other)
        return answer if isinstance(answer, bool) else Ear(answer)

    return method


NAMES = [
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "floordiv",
    "mod",
]
Ear = type(
    "Ear",
    (int,),
    {f"__{name}__": listening(f"__{name}__") for name in NAMES} | {"__hash__": int.__hash__},
)


class OwnFootprint(Granular):
    def waste(self, final_len):
        COMPARED.append(final_len)
        return super().waste(final_len)


CHANNELS = {
    "Longest": changed(Paged, max_seq_len=lambda policy, longest, *_: Ear(longest)),
    "Horizon": changed(Paged, guaranteed_steps=lambda policy, steps, *_: Ear(steps)),
    "ItsFootprint": changed(Paged, footprint=lambda policy, *_: OwnFootprint(policy.block_size)),
    "ItsBlocks": changed(Paged, footprint=lambda policy, *_: Granular(Ear(policy.block_size))),
    "Table": changed(
        Paged, table=lambda policy, table, *_: [Extent(at, Ear(size)) for at, size in table]
    ),
    "Cached": changed(
        Paged, admit=lambda policy, grants, *_: [one._replace(num_cached=Ear(0)) for one in grants]
    ),
    "Grown": changed(
        Paged, extend=lambda policy, one, *_: one._replace(growth=Growth(*map(Ear, one.growth)))
    ),
}


def serve(policy, cost=None, **options):
    scheduler = scheduler_of(MixedPrefill, policy(PoolSpec(256, 128), block_size=4), Recompute())
    requests = [Request(i, 0, PROMPT_LEN, OUTPUT_LEN) for i in range(2)]
    return simulate(requests, scheduler, cost or FastMillisecond(), 128, **options)


@pytest.mark.parametrize("name", CHANNELS)
def test_no_answer_of_a_policy_receives_an_output_length(name):
    policy = type(name, (Paged,), CHANNELS[name])
    COMPARED.clear()
    walked = {"fast_forward": False} if name == "Table" else {}
    refuses(name, serve, policy, error=PlugInError, **walked)
    past = (
        {OUTPUT_LEN - 1} if name == "Grown" else set()
    )  # the steps of a span that is over when growth is read
    secrets = {
        OUTPUT_LEN,
        PROMPT_LEN + OUTPUT_LEN,
        OUTPUT_LEN - 1,
        -(PROMPT_LEN + OUTPUT_LEN) % 4,
    } - past
    assert not secrets & set(map(abs, COMPARED))


@pytest.mark.parametrize("name", CHANNELS)
def test_contract_check_refuses_values_that_overload_comparison(name):
    policy = type(name, (Paged,), CHANNELS[name])
    broken = check_policy(lambda pool: policy(pool, block_size=8), max_examples=30, shrink=False)
    assert broken is not None
    assert broken.clause in (3, 6, 10)


class OwnAffine(Affine):
    def steps_to_reach(self, elapsed_ps):
        raise AssertionError("read when the next request comes")


@pytest.mark.parametrize(
    "kind", [OwnAffine, lambda first, growth, steps: Affine(first, growth, Ear(steps))]
)
def test_no_cost_receives_when_an_output_ends_or_a_request_arrives(kind):
    class Odd(FastMillisecond):
        def decode(self, work):
            return kind(*super().decode(work))

    refuses("Odd", serve, Paged, Odd(), error=PlugInError)


def test_an_oracle_reads_and_cannot_write():
    class Shortening(ContiguousOracle):
        def admit(self, seqs, num_tokens):
            self.lengths[seqs[0].request_id] -= 10
            return super().admit(seqs, num_tokens)

    assert check_policy(Shortening, max_examples=2).clause == 10
