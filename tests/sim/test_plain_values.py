"""Objects of a plug-in's own where numbers belong hear what they are compared with: they are refused unheard."""

import pytest
from manual_driver import scheduler_of
from refusals import refuses
from ticks import FastMillisecond

from testbed.compiled import is_compiled
from testbed.contract import check_policy
from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import Extent, Granular, Growth
from testbed.cost.model import Affine
from testbed.memory.contiguous.contiguous import ContiguousOracle
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from testbed.sim.simulation import simulate

PROMPT_LEN, OUTPUT_LEN = 10, 83
HEARD = []


def listening(name):
    def method(this, other):
        HEARD.append(int(other))
        answer = getattr(int, name)(this, other)
        return answer if isinstance(answer, bool) else Ear(answer)

    return method


NAMES = ["lt", "le", "gt", "ge", "eq", "ne", "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod"]
Ear = type("Ear", (int,), {f"__{name}__": listening(f"__{name}__") for name in NAMES} | {"__hash__": int.__hash__})


class OwnFootprint(Granular):
    def waste(self, final_len):
        HEARD.append(final_len)
        return super().waste(final_len)


class Longest(Paged):
    def max_seq_len(self, prompt_len, num_seqs):
        return Ear(super().max_seq_len(prompt_len, num_seqs))


class Horizon(Paged):
    def guaranteed_steps(self, batch):
        return Ear(super().guaranteed_steps(batch))


class ItsFootprint(Paged):
    def footprint(self, seq):
        return OwnFootprint(self.block_size)


class ItsBlocks(Paged):
    def footprint(self, seq):
        return Granular(Ear(self.block_size))


class Table(Paged):
    footprint = MemoryPolicy.footprint  # none of its own: tables are walked

    def table(self, seq):
        return [Extent(start, Ear(length)) for start, length in super().table(seq)]


class Stored(Table):
    table = Paged.table

    def num_stored(self, num_tokens):
        return Ear(num_tokens)


class Cached(Paged):
    def admit(self, seqs, num_tokens):
        return [grant._replace(num_cached=Ear(0)) for grant in super().admit(seqs, num_tokens)]


class Grown(Paged):
    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        return answer._replace(growth=Growth(*map(Ear, answer.growth)))


CHANNELS = (Longest, Horizon, ItsFootprint, ItsBlocks, Table, Stored, Cached, Grown)


def serve(policy, cost=None, **options):
    scheduler = scheduler_of(MixedPrefill, policy(PoolSpec(256, 128), block_size=4), Recompute())
    requests = [Request(i, 0, PROMPT_LEN, OUTPUT_LEN) for i in range(2)]
    return simulate(requests, scheduler, cost or FastMillisecond(), 128, **options)


@pytest.mark.parametrize("policy", CHANNELS)
def test_no_answer_of_a_policy_receives_an_output_length(policy):
    HEARD.clear()
    if is_compiled() and policy in (Horizon, Cached, Grown):
        serve(policy)  # the compiler has made a plain int of the number
    else:
        refuses(policy.__name__, serve, policy, error=PlugInError)
    past = {OUTPUT_LEN - 1} if policy is Grown else set()  # the steps of a span that is over when growth is read
    secrets = {OUTPUT_LEN, PROMPT_LEN + OUTPUT_LEN, OUTPUT_LEN - 1, -(PROMPT_LEN + OUTPUT_LEN) % 4} - past
    assert not secrets & set(map(abs, HEARD))


@pytest.mark.parametrize("policy", [one for one in CHANNELS if one is not Stored])  # which is asked where tokens drop
def test_the_contract_refuses_it_too(policy):
    found = check_policy(lambda pool: policy(pool, block_size=8), max_examples=30, shrink=False)
    assert found is not None
    assert found.clause in (3, 6, 10)


class OwnAffine(Affine):
    def steps_to_reach(self, elapsed_ps):
        raise AssertionError("heard when the next request comes")


@pytest.mark.parametrize("kind", [OwnAffine, lambda first, growth, steps: Affine(first, growth, Ear(steps))])
def test_no_cost_receives_when_an_output_ends_or_a_request_arrives(kind):
    class Odd(FastMillisecond):
        def decode(self, work):
            return kind(*super().decode(work))

    refuses("Odd", serve, Paged, Odd(), error=PlugInError)


def test_an_oracle_reads_and_cannot_write():
    class Shortening(ContiguousOracle):
        def admit(self, seqs, num_tokens):
            self.output_len[seqs[0].request_id] -= 10
            return super().admit(seqs, num_tokens)

    refuses("does not support item assignment", serve, Shortening, error=TypeError)
    assert check_policy(lambda pool: Shortening(pool, block_size=4), max_examples=2).clause == 10
