"""What a plug-in says by mistake ends the run, by name, instead of ending up in a number."""

import pytest
from test_plug_in_policies import COST, MAX_LEN, MODEL, POOL, SERVER, run, workload
from vattention import VAttention
from window import Window

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import NO_GROWTH, Copy, Grant, Move, Ops
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import Work
from testbed.memory.paged.paged import Paged
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sim.simulation import simulate


class Promising(Paged):
    def horizon(self, batch):
        return min(super().horizon(batch), -1)


class Keeping(Paged):
    def stored(self, num_tokens):
        return num_tokens // 2


class Ordering(Paged):
    ops = Ops()

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        return [grant._replace(ops=self.ops) for grant in answers] if isinstance(answers, list) else answers


class Negative(Ordering):
    ops = Ops(extra=(("pages_mapped", -3),))


class Backward(Ordering):
    ops = Ops(copies=(Copy(0, 16, -16),))


class Returning(Ordering):
    ops = Ops(moves=(Move("device", "host", (Copy(0, 0, -16),)),))


class Silent(Paged):
    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        return answer._replace(growth=NO_GROWTH) if isinstance(answer, Grant) else answer


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Promising, "Promising promises -1 steps"),
        (Keeping, "Keeping keeps 64 of 128 tokens"),
        (Negative, "less than nothing.*pages_mapped"),
        (Backward, "less than nothing"),
        (Returning, "less than nothing"),
        (Silent, "Silent took .* slots in several steps, and says 0"),
    ],
)
def test_it_is_refused(policy, says):
    with pytest.raises(PlugInError, match=says):
        run(workload(0), policy(POOL))


class Spelled(Swap):
    def recovery(self, group):
        return "swap"


def test_a_recovery_is_no_string():
    with pytest.raises(PlugInError, match="Spelled answered 'swap'"):
        run(workload(0, gap_ps=10**8), Paged(POOL), preemption=Spelled)


class Cheaper(AnalyticCost):
    def decode(self, work):
        return super().decode(work)._replace(first_ps=1)


class Steeper(AnalyticCost):
    def decode(self, work):
        return super().decode(work)._replace(growth_ps=1)


@pytest.mark.parametrize("kind", [Cheaper, Steeper])
def test_decode_prices_are_those_of_iterations(kind):
    with pytest.raises(PlugInError, match=f"{kind.__name__} says .* by decode"):
        run(workload(0), Paged(POOL), cost=kind(MODEL, SERVER, Efficiencies()))


def test_samples_have_room_for_their_whole_prompt_when_it_comes_in_chunks():
    rooms = []

    class Watched(VAttention):
        def horizon(self, batch):
            rooms.append([seq.room for seq in batch])
            return 0

    scheduler = ChunkedPrefill(Watched(POOL), Recompute(), max_num_batched_tokens=16, max_num_seqs=9)
    simulate([Request(0, 0, 40, 4, num_seqs=3)], scheduler, COST, MAX_LEN)
    assert rooms == [[room] * 3 for room in (42, 43)]  # the step of the fork's copies is no step of many


def test_chunks_of_a_prompt_read_only_what_a_window_keeps():
    requests = [Request(0, 0, 100, 1)]
    cost = AnalyticCost(MODEL, SERVER, Efficiencies(prefill_flops=1e-6, extra_s={"pages_mapped": 0.0}))
    policies = Window(POOL, sinks=4, window=8, block_size=4), VAttention(POOL, 64)
    kept, full = (run(requests, policy, ChunkedPrefill, cost=cost).totals.busy_ps for policy in policies)
    chunks = [(40, 0), (40, 40), (20, 80)]
    read = [cost.iteration(Work(prefill=((new, min(before, 16)),), num_requests=1)) for new, before in chunks]
    assert kept == sum(read) < full
