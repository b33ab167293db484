"""Fleets by the command line's options: what is refused, what a router may answer, and faults."""

from collections import Counter
from copy import copy

import pytest

from testbed import simulate
from testbed.core.errors import InputError, PlugInError
from testbed.core.request import PS, Request
from testbed.experiments.look.memory_map.map_page import retrace
from testbed.experiments.look.timeline.chrome_trace import PROCESSES, REQUESTS, trace_of
from testbed.experiments.look.timeline.request_phases import DECODE, HANDOVER, PREFILL
from testbed.fleet.faults import Fault, parse_faults
from testbed.fleet.routers.round_robin import RoundRobin
from testbed.fleet.routers.router import Router
from testbed.fleet.routers.vllm_balancer import VllmBalancer
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec

SHORT = {"rate": 3, "duration_s": 20}
SHARED = tuple(range(100))


def conversations(count=40):
    """Requests of four sessions, each with a prefix of its own, five a second."""
    return [
        Request(
            number,
            arrival_ps=number * PS // 5,
            prompt_len=400,
            output_len=50,
            prompt_ids=(number % 4, *range(1000 * number, 1000 * number + 24)),
            tokens_per_id=16,
            session=number % 4,
        )
        for number in range(count)
    ]


class Elsewhere(Router):
    """Answers no engine that it was given."""

    def route(self, request, engines):
        return len(engines)


class SomeOther(Router):
    """Answers what looks like an engine, and is none that it was given."""

    def route(self, request, engines):
        return copy(engines[0])


class LastEngine(Router):
    """A user's router."""

    def route(self, request, engines):
        return engines[-1]


def test_rows_carry_their_engine():
    result = simulate(replicas=3, router=LastEngine, **SHORT)
    assert set(result.requests["engine"]) == set(result.iterations["engine"]) == {2}
    arrived = [one["requests"]["arrived"] for one in result.summary["engines"].values()]
    assert arrived == [0, 0, len(result.requests)]


def test_one_replica_has_the_summary_of_a_run_without_a_fleet():
    slo = {"slo.ttft_s": 0.04, "window_s": (5, 15)}
    alone, fleet = (simulate(**SHORT, **slo, **more).summary for more in ({}, {"replicas": 1}))
    assert {**fleet, "run": None} == {**alone, "run": None}
    assert 0 < alone["slo"]["share_inside"] < 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_objective_of_a_fleet_counts_all_its_requests(replicas):
    result = simulate(replicas=replicas, **SHORT, **{"slo.ttft_s": 0.04})
    inside = (result.requests["ttft_s"] <= 0.04).mean()
    assert result.summary["slo"]["share_inside"] == pytest.approx(inside)


@pytest.mark.parametrize(
    "router", ["round_robin", "fewest_requests", "fewest_tokens", "power_of_two"]
)
def test_routers_that_look_at_load_share_the_requests(router):
    engines = simulate(replicas=2, router=router, **SHORT).requests["engine"]
    assert 0.3 < engines.mean() < 0.7


def test_sessions_stay_on_their_engine():
    result = simulate(replicas=3, router="session_affinity", trace=conversations())
    pairs = {(number % 4, engine) for number, engine in enumerate(result.requests["engine"])}
    assert len(pairs) == 4


def test_without_a_weight_of_load_a_prefix_stays_where_it_is():
    options = {"policy": "prefix_caching", "trace": conversations(), "router": "prefix_aware"}
    stays = simulate(replicas=3, **options, **{"router.load_weight": 0})
    stale = simulate(replicas=3, **options, **{"router.load_weight": 0, "router.cache_age_s": 1000})
    hits = [one.summary["counters"]["hit_blocks"] for one in (stays, stale)]
    assert hits[0] == 36
    assert set(stale.requests["engine"]) == {0}  # it never gets a prefix: the first of equals


def alike(count=40):
    """Requests whose prompts all begin with the same 160 of 400 tokens, five a second."""
    shared = tuple(range(10))
    return [
        Request(
            number,
            arrival_ps=number * PS // 5,
            prompt_len=400,
            output_len=50,
            prompt_ids=(*shared, *range(1000 * (number + 1), 1000 * (number + 1) + 15)),
            tokens_per_id=16,
        )
        for number in range(count)
    ]


def test_a_balanced_router_keeps_prefixes_together_within_its_lead():
    options = {"policy": "prefix_caching", "router": "balanced_prefix", "replicas": 3}
    run = simulate(trace=conversations(), **options)
    assert run.summary["counters"]["hit_blocks"] == 36  # all but each session's first request
    assert len({(number % 4, engine) for number, engine in enumerate(run.requests["engine"])}) == 4


@pytest.mark.parametrize("max_lead", [0, 1000])
def test_a_prefix_that_all_share_draws_no_request_beyond_the_lead(max_lead):
    options = {"policy": "prefix_caching", "trace": alike(), "replicas": 2}
    drawn = simulate(router="prefix_aware", **options, **{"router.load_weight": 0})
    assert set(drawn.requests["engine"]) == {0}
    run = simulate(router="balanced_prefix", **options, **{"router.max_lead": max_lead})
    engines = run.requests.sort_values("request_id")["engine"].tolist()
    assert 1 in engines
    if max_lead:
        second = engines.index(1)  # from then on both have the prefix, and they take turns
        assert engines[second:] == [1 - n % 2 for n in range(len(engines) - second)]


def ends_of(run, engine):
    """The end of each request of the engine, in order of request."""
    table = run.requests.sort_values("request_id")
    return table[table["engine"] == engine]["finish_s"].tolist()


def test_engines_may_have_different_servers():
    options = {"model": "llama-3-8b", "gpu": "h200", "replicas": 3, **SHORT}
    mixed = simulate("gpu@2=l40s", **options)
    same, other = simulate(**options), simulate(**{**options, "gpu": "l40s"})
    for number, run in enumerate([same, same, other]):  # round robin, so requests are the same
        assert ends_of(mixed, number) == ends_of(run, number)
    pools = [mixed.setup.pool_of(number).num_slots for number in range(3)]
    assert pools == [same.setup.pool.num_slots] * 2 + [other.setup.pool.num_slots]
    assert mixed.num_slots == sum(pools)
    mapped = retrace(mixed.setup.config, 0.0, 5.0, 2).num_slots
    assert mapped // 16 == pools[2] // 16  # blocks
    assert f"l40s, {pools[2]:,} slots, auto_cost (derived" in mixed.summary["run"]["servers"]
    assert "servers" not in same.summary["run"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpu@2=l4"], "servers.2: the engines that may"),
        (["gpu@0=l4"], "servers.0: the engines that may"),
        (["gpu@1=nope"], "gpu=nope"),
        (["gpu@1=l4", "server.num_blocks=500"], "servers.1.num_blocks: the pool"),
        (["gpu@1=l4", "+system=vllm-v1"], "servers.1.num_blocks: the pool"),
        (["gpu@1=l4", "model=llama-3-70b", "server.num_gpus=4"], "on l4-x4: leaves no memory"),
    ],
)
def test_servers_that_make_no_sense_are_refused(words, message):
    with pytest.raises(InputError, match=message):
        simulate("model=llama-3-8b", "gpu=h200", *words, replicas=2, **SHORT)


def test_a_router_must_answer_an_engine():
    with pytest.raises(PlugInError, match=r"Elsewhere: route\(\) answered 2 for request 0"):
        simulate(replicas=2, router=Elsewhere, **SHORT)
    with pytest.raises(PlugInError, match=r"SomeOther: route\(\) answered .* for request 0"):
        simulate(replicas=2, router=SomeOther, **SHORT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"router": "round_robin"}, "there is one engine"),
        ({"replicas": 2, "router": "prefix_aware"}, "no prompt content"),
        ({"replicas": 2, "router": "balanced_prefix"}, "no prompt content"),
        ({"replicas": 2, "router": "session_affinity"}, "no sessions"),
        ({"replicas": 2, "window_s": (0, 5)}, "window_s is not modelled"),
        ({"replicas": 2, "faults": "engine 2 at 3 s"}, "there is no engine 2"),
        ({"replicas": 2, "preemption": object()}, "preemption=object: is no"),
        ({"replicas": 10**9}, "room for 10,000 engines"),
    ],
)
def test_wrong_options_of_a_fleet_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        simulate(**options, **SHORT)


def test_a_timeline_shows_engines_apart():
    result = simulate(replicas=2, **SHORT)
    trace, _ = trace_of(result.setup.config)
    events = trace["traceEvents"]
    names = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    shown = Counter(
        names[event["pid"]]
        for event in events
        if event["ph"] == "B" and event.get("cat") == "request"
    )
    arrived = {
        f"Engine {number}: Requests": engine["requests"]["arrived"]
        for number, engine in result.summary["engines"].items()
    }
    assert shown == arrived


def test_a_timeline_shows_a_hand_over():
    result = simulate(replicas=2, prefill_replicas=1, policy="prefix_caching", **SHORT)
    trace, _ = trace_of(result.setup.config)
    phases = Counter(
        (event["pid"], event["name"])
        for event in trace["traceEvents"]
        if event["ph"] == "B" and event.get("cat") == "phase"
    )
    prefilled, handed_over = phases[REQUESTS, PREFILL], phases[len(PROCESSES) + REQUESTS, HANDOVER]
    assert prefilled == handed_over == len(result.requests)
    assert not phases[REQUESTS, DECODE]


def test_a_memory_map_shows_one_of_several_engines():
    config = simulate(replicas=2, faults="engine 1 at 8 s", **SHORT).setup.config
    trace = retrace(config, 0.0, 10.0, engine=0)
    own = {held.request_id % 2 for frame in trace.frames for held in frame.held.values()}
    assert own == {0, 1}  # from 8 s on those of the other engine too
    early = retrace(config, 0.0, 7.0, engine=0)
    assert {held.request_id % 2 for frame in early.frames for held in frame.held.values()} == {0}
    for engine, message in ((None, "shows one of 2"), (2, "from 0 to 1"), (1, "it fails in this")):
        with pytest.raises(InputError, match=message):
            retrace(config, 0.0, None, engine)
    with pytest.raises(InputError, match="there is one engine"):
        retrace(simulate(**SHORT).setup.config, 0.0, None, 1)


def test_compare_shows_engines_apart():
    alone, two = simulate(**SHORT), simulate(replicas=2, **SHORT)
    page = alone.compare(two, ("alone", "two"))._repr_html_()
    assert "Engines of two" in page
    assert "Engines of alone" not in page


def test_faults_are_read():
    text = "engine 1 at 60 s, back at 90.5 s; engine 0 at 10 s"
    first, second = Fault(0, 10 * PS, None), Fault(1, 60 * PS, 181 * PS // 2)
    assert parse_faults(text, 2) == (first, second)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine one", "is no fault"),
        ("engine 0 at 5 s, back at 5 s", "back before it fails"),
        ("engine 0 at 5 s; engine 0 at 9 s", "fails again before it is back"),
        ("engine 0 at 5 s; engine 1 at 9 s", "no engine is left"),
    ],
)
def test_faults_that_make_no_sense_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_faults(text, 2)


def test_requests_of_a_failed_engine_are_answered_by_others():
    result = simulate(replicas=2, faults="engine 1 at 5 s, back at 15 s", **SHORT)
    table, engines = result.requests, result.summary["engines"]
    assert len(table) == table["request_id"].nunique() == result.summary["requests"]["finished"]
    assert engines["1"]["requests"]["moved"] > 0
    meanwhile = table[(table["arrival_s"] > 5) & (table["arrival_s"] < 15)]
    assert set(meanwhile["engine"]) == {0}
    assert 1 in set(table[table["arrival_s"] > 15]["engine"])


def test_an_engine_that_has_come_back_may_be_the_last_to_end():
    """Its iterations were missing: the run was over with the engines that never failed."""
    fleet = {"replicas": 2, "router": LastEngine, "faults": "engine 1 at 0 s, back at 0.1 s"}
    goes_on = {"scheduler": "vllm_v1_async", "scheduler.ignore_eos": False}  # an iteration longer
    result = simulate(**fleet, **goes_on, **SHORT)
    ends_s = result.iterations["start_s"] + result.iterations["duration_s"]
    assert ends_s.max() >= result.requests["finish_s"].max()


def test_a_fault_that_comes_after_the_end_is_said():
    run = simulate(replicas=2, faults="engine 1 at 2 s; engine 0 at 900 s, back at 901 s", **SHORT)
    assert run.summary["run"]["faults"].endswith("(the run ended before that of engine 0)")


def test_requests_wait_while_no_engine_is_up():
    result = simulate(replicas=1, faults="engine 0 at 5 s, back at 15 s", **SHORT)
    waited = result.requests[result.requests["arrival_s"].between(5.2, 15)]
    assert len(waited)
    assert (waited["first_token_s"] > 15).all()


def test_vllms_balancer_counts_what_waits_four_times_and_learns_it_late():
    class View:
        def __init__(self, number, waiting, running):
            self.number, self.num_waiting, self.num_running = number, waiting, running

    router, engines = VllmBalancer(interval_s=0.1), [View(0, 0, 9), View(1, 1, 0)]
    chosen = [
        router.route(Request(0, arrival_ps=0, prompt_len=1, output_len=1).incoming, engines).number
        for _ in range(3)
    ]
    assert chosen == [1, 1, 0]  # scores 9 and 4, 9 and 8, 9 and 12
    engines[0].num_running = 1
    early, late = (
        Request(0, arrival_ps=at_ps, prompt_len=1, output_len=1).incoming
        for at_ps in (PS // 11, PS // 10)
    )
    assert router.route(early, engines).number == 1  # 13 and 12
    assert router.route(late, engines).number == 0


def test_vllms_newer_balancer_counts_what_is_unanswered_and_weighs_the_pools_usage():
    """As vLLM 0.33.0's own client chose for these counts, which are news once."""

    class View:
        def __init__(self, number, waiting, running, kv_usage):
            self.number, self.num_waiting, self.num_running = number, waiting, running
            self.num_requests, self.kv_usage = waiting + running, kv_usage

    router = VllmBalancer(weighs_usage=True)
    engines = [View(0, 2, 3, 0.4), View(1, 1, 3, 1.0), View(2, 0, 5, 0.9)]
    asked = Request(0, arrival_ps=0, prompt_len=1, output_len=1).incoming
    assert [router.route(asked, engines).number for _ in range(6)] == [0, 2, 0, 0, 1, 0]


def test_round_robin_goes_on_behind_an_engine_that_is_down():
    router = RoundRobin()
    zero, one, two = (type("View", (), {"number": number})() for number in range(3))
    chosen = [
        router.route(None, engines).number
        for engines in ([zero, one, two], [zero, two], [zero, one, two])
    ]
    assert chosen == [0, 2, 0]


def test_a_router_of_caches_needs_a_policy_that_reports_its_cache():
    options = {"router": "prefix_aware", "router.cache_age_s": 1, "policy": "paged"}
    with pytest.raises(InputError) as caught:
        simulate(replicas=2, trace=conversations(), **options)
    assert (caught.value.key, caught.value.value) == ("policy", "Paged")


def test_one_object_cannot_serve_several_engines():
    policy = Paged(PoolSpec(6400, 2048))
    with pytest.raises(InputError) as caught:
        simulate(policy=policy, replicas=2, **SHORT)
    assert caught.value.key == "replicas=2"
    assert "policy is an object" in caught.value.problem
