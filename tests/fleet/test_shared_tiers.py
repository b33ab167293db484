"""A tier that all engines use: what one has stored another finds, and their transfers share one
link.

A prompt of 64 tokens is 8 blocks; an iteration takes 1 ms, and a transfer 1 ms for each block.
"""

import pytest
from refusals import refuses
from tiny import MS, FastMillisecond

from testbed.core.errors import InputError, PlugInError
from testbed.core.request import Request
from testbed.engine.engine_parts import EngineParts
from testbed.engine.recorder import Recorder
from testbed.experiments.runs.compose import configured
from testbed.fleet.faults import Fault
from testbed.fleet.fleet_rules import FleetRules
from testbed.fleet.fleet_simulation import simulate_fleet
from testbed.fleet.routers.router import Router
from testbed.fleet.shared_tiers import SharedTiers
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.tiers.store_rules import BeforeEviction, WriteBack
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.run.build import build
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

BLOCK = 8
POOL = PoolSpec(128, 128, (Tier("dram", 400, 1e9),))


class MillisecondABlock(FastMillisecond):
    """Also for each block of a transfer."""

    def transfer(self, moves):
        return sum(move.length * move.num_transfers for move in moves) // BLOCK * MS


class ById(Router):
    """Request n goes to engine n % 10, of those that are up."""

    def route(self, request, engines):
        return next(
            (view for view in engines if view.number == request.request_id % 10), engines[0]
        )


def prompt(request_id, arrival_ms, content, output_len=2):
    ids = tuple(range(100 * content, 100 * content + 64))
    return Request(request_id, arrival_ms * MS, 65, output_len, prompt_ids=(*ids, request_id))


def run(requests, num_engines=2, *, shared=("dram",), faults=(), **options):
    """The fleet after it has served the requests, and the times of first tokens (ms) by request."""

    def make_parts(number):
        policy = TieredCaching(POOL, block_size=BLOCK, watermark=0, **options)
        scheduler = MixedPrefill(policy, Recompute(), max_num_batched_tokens=200, max_num_seqs=8)
        return EngineParts(scheduler, MillisecondABlock(), 128)

    recorders = [Recorder() for _ in range(num_engines)]
    rules = FleetRules(ById(), faults=faults, shared_tiers=shared)
    fleet = simulate_fleet(requests, make_parts, recorders, rules)
    columns = [recorder.requests.columns() for recorder in recorders]
    firsts = {
        request_id: time_ps / MS
        for table in columns
        for request_id, time_ps in zip(table["request_id"], table["first_token_ps"], strict=True)
    }
    return fleet, firsts


def counters(fleet, number):
    return fleet.replicas[number].engine.scheduler.policy.counters()


def test_what_one_engine_has_stored_another_loads():
    requests = [prompt(0, 0, 1), prompt(1, 20, 1)]
    fleet, firsts = run(requests)
    assert counters(fleet, 0)["stored_blocks"] == 8
    assert counters(fleet, 1)["loaded_blocks"] == counters(fleet, 1)["hit_blocks"] == 8
    assert counters(fleet, 1)["stored_blocks"] == 0  # they are there already
    assert firsts == {0: 1, 1: 20 + 8 + 1}
    fleet, firsts = run(requests, shared=())
    assert counters(fleet, 1)["loaded_blocks"] == 0
    assert firsts == {0: 1, 1: 20 + 1}


def test_loads_of_two_engines_share_the_link_equally():
    requests = [prompt(0, 0, 1), prompt(1, 40, 1), prompt(2, 40, 1)]
    _, firsts = run(requests, 3)
    assert firsts == {0: 1, 1: 40 + 16 + 1, 2: 40 + 16 + 1}
    requests[2] = prompt(2, 44, 1)  # 4 ms alone, then 8 ms for the other 4 blocks of the first
    _, firsts = run(requests, 3)
    assert firsts == {0: 1, 1: 44 + 8 + 1, 2: 44 + 8 + 4 + 1}


def test_a_block_that_one_engine_is_storing_is_not_stored_by_another():
    fleet, _ = run([prompt(0, 0, 1), prompt(1, 3, 1)])
    assert [counters(fleet, number)["stored_blocks"] for number in (0, 1)] == [8, 0]


def test_an_engine_without_requests_and_stores_need_not_plan_when_a_tier_changes(monkeypatch):
    requests = [prompt(10 * n + n % 3, 7 * n, n % 4, output_len=2 + 9 * (n % 2)) for n in range(30)]
    store = BeforeEviction(16)
    fleet, firsts = run(requests, 3, store=store)

    def replan_all(tiers):
        for engine in tiers._engines:
            engine.replan()

    monkeypatch.setattr(SharedTiers, "_replan", replan_all)
    plain, plain_firsts = run(requests, 3, store=store)
    assert firsts == plain_firsts
    assert [counters(fleet, n) for n in range(3)] == [counters(plain, n) for n in range(3)]
    assert counters(fleet, 0)["stored_blocks"] > 0


def test_an_exclusive_tier_loses_what_an_engine_has_loaded_unless_another_loads_it_too():
    exclusive = {"exclusive": True, "store": BeforeEviction(16)}
    # On engine 0, whose device they fill, so that content 1 is stored in the tier
    fillers = [
        prompt(request_id=10 * content, arrival_ms=10 * content, content=content)
        for content in (1, 2, 3)
    ]
    on_engine_1 = prompt(request_id=1, arrival_ms=100, content=1)
    alone, _ = run([*fillers, on_engine_1], **exclusive)
    assert counters(alone, 1)["loaded_blocks"] == 8
    num_left = len(alone.tiers.memories["dram"].blocks)
    assert num_left == counters(alone, 0)["stored_blocks"] - 8

    on_engine_2 = prompt(request_id=2, arrival_ms=101, content=1)
    both, _ = run([*fillers, on_engine_1, on_engine_2], num_engines=3, **exclusive)
    assert counters(both, 1)["loaded_blocks"] == 8
    assert counters(both, 2)["loaded_blocks"] == 8


def test_an_engine_that_fails_leaves_what_has_landed_and_frees_the_rest():
    lost = Fault(0, 4 * MS, 6 * MS)  # its store of 8 ms has begun at 1 ms
    fleet, _ = run([prompt(0, 0, 1), prompt(1, 20, 1)], faults=(lost,))
    assert counters(fleet, 1)["loaded_blocks"] == 0
    kept = Fault(0, 12 * MS, 14 * MS)
    fleet, firsts = run([prompt(0, 0, 1), prompt(10, 20, 1)], faults=(kept,))
    assert counters(fleet, 0)["loaded_blocks"] == 8  # of the engine that has come back
    assert firsts[10] == 20 + 8 + 1


def test_a_failed_engine_takes_nothing_of_the_link_any_more():
    requests = [prompt(0, 0, 1), prompt(1, 40, 1), prompt(2, 40, 1)]
    fault = Fault(2, 44 * MS, None)  # 2 of 8 ms had been served of either load
    _, firsts = run(requests, 3, faults=(fault,))
    assert firsts[1] == 44 + 6 + 1


def test_a_block_that_no_transfer_reads_any_more_is_reported_if_it_stays_pinned():
    fleet, _ = run([prompt(0, 0, 1)])
    fleet.tiers.check()
    fleet.tiers.memories["dram"].pins.add([0])
    with pytest.raises(PlugInError, match="tier dram, which several engines share"):
        fleet.tiers.check()


def test_a_policy_that_writes_within_an_iteration_is_refused():
    refuses("WriteBack writes within an iteration", run, [prompt(0, 0, 1)], store=WriteBack())


def test_a_tier_that_no_engine_has_is_refused():
    refuses("has no tier of that name", run, [prompt(0, 0, 1)], shared=("nvme",))


SHARED = ("+tier@server.tiers.dram=dram", "server.tiers.dram.shared=true")
FAST = ("server.tiers.dram.read_bandwidth=5e10", "server.tiers.dram.write_bandwidth=5e10")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("policy=tiered", *FAST), r"server\.tiers\.dram\.shared: there is one engine"),
        (("policy=paged", "replicas=2", *FAST), "server.tiers: "),
        (("policy=tiered", "replicas=2"), "give its read_bandwidth"),
        (("policy=tiered_exclusive", "replicas=2", *FAST), "WriteBack writes within an iteration"),
    ],
)
def test_shared_tiers_that_make_no_sense_are_refused_before_the_run(words, message):
    with pytest.raises(InputError, match=message):
        build(configured((*SHARED, *words)))
