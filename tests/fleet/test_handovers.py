"""Prefill apart from decode: times by hand, and what happens when a hand-over does not go well.

A token has 131,072 bytes in 32 layers, as Llama-3-8B's. A prefill takes 64 ms, so 2 ms a layer, and
a decode step 1 ms. At 2 GB/s 1,000 tokens take 65.536 ms, 2.048 ms a layer; at 50 GB/s 1/25 of it.
"""

import numpy as np
import pytest
from tiny import MS

from testbed import simulate
from testbed.core.errors import InputError, PlugInError
from testbed.core.request import Request
from testbed.core.slots import Copy, Refusal
from testbed.cost.model import UNBOUNDED, Affine, CostModel
from testbed.engine.clients import OpenLoop
from testbed.engine.engine_parts import EngineParts
from testbed.engine.listeners import Listener
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.fleet.faults import Fault, Faults
from testbed.fleet.fleet_records import check_conservation, together
from testbed.fleet.fleet_rules import FleetRules
from testbed.fleet.fleet_simulation import make_fleet, run_to_end
from testbed.fleet.handovers.by_layer import ByLayer
from testbed.fleet.handovers.handover import num_runs
from testbed.fleet.handovers.rule import Computed, Sending
from testbed.fleet.handovers.split import Split
from testbed.fleet.handovers.whole import Whole
from testbed.fleet.routers.round_robin import RoundRobin
from testbed.fleet.summary import handovers_of
from testbed.memory.paged.paged import Paged
from testbed.memory.pools import PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

MAX_LEN = 4000
SLOT_BYTES, NUM_LAYERS = 131_072, 32
US = MS // 1000


class PrefillAndDecode(CostModel):
    """64 ms for an iteration with a prompt, 1 ms for any other."""

    def iteration(self, work):
        return 64 * MS if work.prefill else MS

    def decode(self, work):
        return Affine(MS, 0, UNBOUNDED)


class RefusesLong(Paged):
    """Refuses prompts of more than 900 tokens, and says so when it is asked for slots alone."""

    def admit(self, seqs, num_tokens):
        return Refusal.NEVER if seqs[0].prompt_len > 900 else super().admit(seqs, num_tokens)


def run(
    rule,
    requests,
    *,
    cancelled=(),
    faults=(),
    decode_slots=20_000,
    decode_block=16,
    kinds=(Paged, Paged),
    listener=None,
):
    """One prefill and one decode engine; the requests' rows by id, and the fleet."""

    def make_parts(number):
        slots, block_size = ((20_000, 16), (decode_slots, decode_block))[number]
        policy = kinds[number](PoolSpec(slots, MAX_LEN), block_size=block_size, watermark=0)
        scheduler = MixedPrefill(
            policy, Recompute(), max_num_batched_tokens=10_000, max_num_seqs=100
        )
        return EngineParts(scheduler, PrefillAndDecode(), MAX_LEN)

    clock, recorders = SimClock(), [Recorder(), Recorder()]
    split = Split(
        num_prefill=1,
        rule=rule,
        decode_router=RoundRobin(),
        slot_bytes=SLOT_BYTES,
        num_layers=NUM_LAYERS,
    )
    fleet = make_fleet(clock, make_parts, recorders, FleetRules(RoundRobin(), split))
    if listener is not None:
        fleet.listen(listener)
    OpenLoop(clock, fleet, requests).start()
    Faults(clock, fleet, faults).start()
    for at_ps, request_id in cancelled:
        clock.call_at(at_ps, lambda request_id=request_id: fleet.cancel(request_id))
    fleet.start()
    run_to_end(clock, fleet, UNBOUNDED)
    check_conservation(len(requests), recorders)
    return rows_of(recorders), fleet


def rows_of(recorders):
    """The columns of all requests, in order of their ids."""
    columns = together(recorders).requests.columns()
    order = np.argsort(columns["request_id"])
    return {name: column[order].tolist() for name, column in columns.items()}


def ways_ps(rule, *prompts):
    """Time from the first token of each prompt, all computed at once, to its landing: its second
    token is a step of 1 ms later.
    """
    rows, _ = run(
        rule,
        [
            Request(i, arrival_ps=0, prompt_len=prompt, output_len=2)
            for i, prompt in enumerate(prompts)
        ],
    )
    assert set(rows["first_token_ps"]) == {64 * MS}
    assert set(rows["engine"]) == {1}
    return [finish_ps - 65 * MS for finish_ps in rows["finish_ps"]]


@pytest.mark.parametrize(
    ("bandwidth", "num_tokens", "microseconds"),
    [
        (2e9, 500, 32_768),
        (2e9, 1000, 65_536),
        (2e9, 2000, 131_072),
        (50e9, 500, 1_310.72),
        (50e9, 1000, 2_621.44),
        (50e9, 2000, 5_242.88),
    ],
)
def test_a_whole_prompt_takes_latency_and_its_bytes_over_the_bandwidth(
    bandwidth, num_tokens, microseconds
):
    assert ways_ps(Whole(bandwidth), num_tokens) == [round(microseconds * US)]
    slower = Whole(bandwidth, latency_s=1e-3)
    assert ways_ps(slower, num_tokens) == [MS + round(microseconds * US)]


@pytest.mark.parametrize(
    ("bandwidth", "num_tokens", "microseconds"),
    [
        # The link is faster than the layers: all but the last layer is hidden
        (50e9, 500, 40.96),
        (50e9, 1000, 81.92),
        (50e9, 2000, 163.84),
        (2e9, 500, 1_024),
        # It is slower: 31 layers of 2 ms hide as much of the 32 that are sent
        (2e9, 1000, 65_536 - 62_000),
        (2e9, 2000, 131_072 - 62_000),
    ],
)
def test_by_layer_what_computing_does_not_hide_is_left(bandwidth, num_tokens, microseconds):
    assert ways_ps(ByLayer(bandwidth), num_tokens) == [round(microseconds * US)]
    slower = ByLayer(bandwidth, latency_s=1e-3)
    assert ways_ps(slower, num_tokens) == [MS + round(microseconds * US)]


def test_a_fleet_counts_the_time_of_its_hand_overs():
    requests = [Request(0, arrival_ps=0, prompt_len=1000, output_len=2)]
    fleet = run(Whole(2e9, latency_s=1e-3), requests)[1]
    times = {"mean_s": 0.066536, "p99_s": 0.066536, "link_s": 0.066536, "bandwidth": 2e9}
    assert handovers_of(fleet) == {"handovers": pytest.approx(times)}


def test_prompts_that_end_in_one_iteration_share_the_link():
    """Each of the two is on it for twice the time that its bytes take alone."""
    requests = [Request(number, arrival_ps=0, prompt_len=1000, output_len=2) for number in (0, 1)]
    alone, together = (
        handovers_of(run(Whole(2e9), some)[1])["handovers"] for some in (requests[:1], requests)
    )
    assert together["link_s"] == pytest.approx(2 * alone["link_s"])
    assert together["p99_s"] >= together["mean_s"] >= together["link_s"]


def test_parts_of_a_prompt_are_sent_while_later_ones_are_computed():
    """Two parts of 1,000 tokens: the link is free of the first at 2 + 65.536 ms, of the second
    65.536 ms later, 5.072 ms behind the end of the prefill.
    """
    parts = (
        Computed(num_stored=0, new=1000, start_ps=0, end_ps=64 * MS),
        Computed(num_stored=1000, new=1000, start_ps=64 * MS, end_ps=128 * MS),
    )
    sending = Sending(
        num_tokens=2000,
        num_skipped=0,
        num_extents=1,
        slot_bytes=SLOT_BYTES,
        num_layers=NUM_LAYERS,
        parts=parts,
    )
    assert ByLayer(2e9).left_ps(sending) == 5_072 * US


def test_hand_overs_at_once_share_the_link():
    assert ways_ps(Whole(2e9), 1000, 1000) == [131_072 * US, 131_072 * US]
    assert ways_ps(Whole(2e9), 500, 1000) == [65_536 * US, 98_304 * US]


def test_extents_are_paid_as_those_of_a_tier():
    rule = Whole(2e9, extent_s=1e-6)
    assert ways_ps(rule, 1000) == [65_537 * US]  # both tables are one run of adjacent blocks


def test_blocks_of_different_sizes_are_cut_where_either_ends():
    copies = (Copy(0, 100, 8), Copy(8, 200, 8), Copy(16, 208, 8))
    assert num_runs(copies, 0) == 2
    assert num_runs(copies, 8) == 1
    rows, _ = run(
        Whole(2e9), [Request(0, arrival_ps=0, prompt_len=1000, output_len=2)], decode_block=10
    )
    assert rows["finish_ps"] == [65 * MS + 65_536 * US]


@pytest.mark.parametrize("reserves", [False, True])
def test_the_decode_pool_bounds_what_is_on_the_way(reserves):
    """It has room for one of two prompts. Reserved first, the second prompt is not even begun."""
    requests = [Request(i, arrival_ps=0, prompt_len=1000, output_len=2) for i in range(2)]
    rows, _ = run(Whole(2e9, reserves=reserves), requests, decode_slots=1008)
    first_end = 65 * MS + 65_536 * US
    assert rows["first_token_ps"] == [64 * MS, first_end + 64 * MS if reserves else 64 * MS]
    later = first_end + 64 * MS if reserves else first_end
    assert rows["finish_ps"] == [first_end, later + 65_536 * US + MS]


def totals_of(fleet, *names):
    """These totals, summed over the engines."""
    totals = [replica.engine.recorder.totals for replica in fleet.replicas]
    return [sum(getattr(one, name) for one in totals) for name in names]


def test_a_request_that_is_cancelled_while_its_prompt_is_computed_leaves_nothing():
    """It leaves when the iteration has ended, with the first token."""
    requests = [Request(0, arrival_ps=0, prompt_len=1000, output_len=4)]
    rows, fleet = run(Whole(2e9), requests, cancelled=[(32 * MS, 0)])
    assert totals_of(fleet, "arrived", "cancelled", "finished") == [1, 1, 0]
    assert (rows["output_len"], rows["finish_ps"]) == ([1], [-1])
    assert all(replica.engine.scheduler.policy.usage().held == 0 for replica in fleet.replicas)


@pytest.mark.parametrize("reserves", [False, True])
def test_a_prompt_that_the_decode_engine_can_never_store_is_rejected(reserves):
    requests = [
        Request(0, arrival_ps=0, prompt_len=1000, output_len=4),
        Request(1, arrival_ps=0, prompt_len=200, output_len=4),
    ]
    rows, fleet = run(Whole(2e9, reserves=reserves), requests, decode_slots=512)
    assert totals_of(fleet, "arrived", "rejected", "finished") == [2, 1, 1]
    assert [at_ps > 0 for at_ps in rows["finish_ps"]] == [False, True]


@pytest.mark.parametrize("reserves", [False, True])
def test_a_refusal_of_the_decode_engine_for_ever_ends_the_request_at_both_ends(reserves):
    """It has arrived once; the request behind it gets its slots."""
    requests = [
        Request(i, 0, prompt_len=length, output_len=4) for i, length in enumerate((1000, 200))
    ]
    rows, fleet = run(Whole(2e9, reserves=reserves), requests, kinds=(Paged, RefusesLong))
    assert totals_of(fleet, "arrived", "rejected", "finished") == [2, 1, 1]
    assert [at_ps > 0 for at_ps in rows["finish_ps"]] == [False, True]
    assert all(one.engine.scheduler.policy.usage().held == 0 for one in fleet.replicas)


def test_a_request_that_is_cancelled_on_the_way_leaves_with_its_first_token():
    requests = [
        Request(0, arrival_ps=0, prompt_len=1000, output_len=50),
        Request(1, arrival_ps=0, prompt_len=1000, output_len=200),
    ]
    rows, fleet = run(Whole(2e9), requests, cancelled=[(100 * MS, 0)])
    assert rows["output_len"] == [1, 200]
    assert rows["finish_ps"] == [-1, 64 * MS + 131_072 * US + 199 * MS]  # it lands all the same
    for replica in fleet.replicas:
        assert replica.engine.scheduler.policy.usage().held == 0


def test_a_request_that_is_cancelled_while_it_decodes_leaves_with_its_tokens():
    lands = 64 * MS + 65_536 * US
    requests = [Request(0, arrival_ps=0, prompt_len=1000, output_len=200)]
    rows, fleet = run(Whole(2e9), requests, cancelled=[(lands + 10 * MS + US, 0)])
    assert rows["output_len"] == [1 + 11]
    assert rows["finish_ps"] == [-1]
    assert all(one.engine.scheduler.policy.usage().held == 0 for one in fleet.replicas)


def test_a_request_that_is_cancelled_while_it_waits_for_slots_has_arrived_once():
    requests = [Request(i, arrival_ps=0, prompt_len=1000, output_len=2) for i in range(2)]
    cancelled = [(10 * MS, 1)]
    rows, fleet = run(Whole(2e9, reserves=True), requests, cancelled=cancelled, decode_slots=1008)
    assert rows["first_token_ps"] == [64 * MS, -1]
    totals = [replica.engine.recorder.totals for replica in fleet.replicas]
    assert [sum(getattr(one, name) for one in totals) for name in ("arrived", "cancelled")] == [
        2,
        1,
    ]


@pytest.mark.parametrize("engine", [0, 1])
def test_a_request_whose_engine_fails_begins_anew(engine):
    """It is on the way at 100 ms; the engine is back at once, at 101 ms."""
    fault = Fault(engine, 100 * MS, 101 * MS)
    rows, _ = run(
        Whole(2e9), [Request(0, arrival_ps=0, prompt_len=1000, output_len=2)], faults=(fault,)
    )
    assert rows["first_token_ps"] == [101 * MS + 64 * MS]
    assert rows["finish_ps"] == [101 * MS + 65 * MS + 65_536 * US]


def test_an_output_of_one_token_is_never_handed_over():
    rows, _ = run(Whole(2e9), [Request(0, arrival_ps=0, prompt_len=1000, output_len=1)])
    assert rows["engine"] == [0]
    assert rows["finish_ps"] == [64 * MS]


def test_what_is_computed_again_after_a_hand_over_is_no_hit_of_its_prompt():
    """The decode engine's 128 blocks hold both prompts, and not both outputs."""
    ids = tuple(range(1000))
    requests = [
        Request(i, arrival_ps=0, prompt_len=1000, output_len=100, prompt_ids=ids) for i in range(2)
    ]
    rows, _ = run(Whole(2e9), requests, decode_slots=128 * 16)
    assert rows["num_recomputes"] == [0, 1]
    assert rows["hit_tokens"] == [0, 0]


def test_hits_are_those_of_the_engine_that_computes_the_prompt():
    words = ("policy=prefix_caching", "trace=chat_histories", "trace.max_prompt=600")
    result = simulate(
        *words, model="llama-3-8b", gpu="h100-80gb", replicas=2, prefill_replicas=1, **SHORT
    )
    requests, found = result.requests, result.summary["while_arriving"]["prompt_found"]
    computed = result.iterations["prefill_tokens"].sum()
    assert requests["hit_tokens"].sum() == requests["prompt_len"].sum() - computed > 0
    assert 0 < found < 1
    assert result.summary["counters"]["prompts"] == 2 * len(requests)
    assert "each prompt counts at two engines" in str(result)


SHORT = {"rate": 3, "duration_s": 20}


def test_prefill_engines_by_the_options_of_a_run():
    result = simulate(
        replicas=3, prefill_replicas=1, handover="by_layer", scheduler="mixed", **SHORT
    )
    assert set(result.requests["engine"]) == {1, 2}
    assert result.summary["engines"]["0"]["requests"]["moved"] == len(result.requests)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 2, "prefill_replicas": 2}, "none of 2 engines is left to decode"),
        ({"prefill_replicas": 1}, "give replicas=N"),
        ({"replicas": 2, "handover": "whole"}, "give prefill_replicas=N"),
        ({"scheduler": "static"}, "scheduler=StaticBatch"),
        ({"workload.num_seqs": 2}, "several sequences"),
        ({"policy": "grouped"}, "policy=Grouped"),
        ({"policy": "contiguous_oracle"}, "true output lengths"),
    ],
)
def test_what_is_not_modelled_is_refused(options, message):
    if "replicas" not in options and "prefill_replicas" not in options:
        options = {"replicas": 2, "prefill_replicas": 1, **options}
    with pytest.raises(InputError, match=message):
        simulate(**options, **SHORT)


def test_schedulers_that_serve_by_rank_are_refused():
    requests = [
        Request(i, arrival_ps=0, prompt_len=100, output_len=5, priority=i) for i in range(2)
    ]
    with pytest.raises(InputError, match="serves in order of arrival"):
        simulate(replicas=2, prefill_replicas=1, order="priority", trace=requests)


def test_a_lost_request_and_a_second_answer_are_noticed():
    recorder = Recorder()
    with pytest.raises(PlugInError, match="1 arrived, 0 are finished"):
        check_conservation(1, [recorder])
    check_conservation(0, [recorder, Recorder()])


def test_listeners_of_a_fleet_hear_of_a_rejection_once():
    """By its engine's reason, beside those that finish."""
    heard, requests = [], [Request(0, 0, 9000, 4), Request(1, 0, 200, 4)]

    class Heard(Listener):
        def on_finished(self, request_id, time_ps):
            heard.append((request_id, "finished"))

        def on_rejected(self, request_id, reason, time_ps):
            heard.append((request_id, reason))

    run(Whole(2e9), requests, listener=Heard())
    assert heard == [(0, "9004 tokens are more than the longest sequence of 4000"), (1, "finished")]
