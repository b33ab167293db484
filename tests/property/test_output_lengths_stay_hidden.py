"""No part that does not declare it can know how long an output will be, by whatever an argument
leads to.

Two runs of the same requests but for output lengths must look the same from inside until the first
of the outputs that differ has ended: every call, every argument, every attribute that can be
reached from it.
"""

import hashlib
import re
from collections import deque
from collections.abc import Mapping, Set
from enum import Enum
from functools import cache
from itertools import chain
from types import BuiltinMethodType, CellType, FunctionType, MethodType, ModuleType

import pytest
import simpy
from tiny import MS, FastMillisecond, analytic

from testbed.core.request import Request
from testbed.engine.outputs import Outputs
from testbed.engine.simulation import simulate
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap
from testbed.sched.scheduler import IterationLevel
from testbed.sched.separate import SeparatePrefill
from testbed.sched.vllm_v1 import AsyncVllmV1

MAX_LEN = 48
COST = analytic(overhead_s=1e-3, copy_s=1e-5)
POLICY_CALLS = (
    "admit",
    "extend",
    "release",
    "table",
    "usage",
    "lookup",
    "publish",
    "guaranteed_steps",
    "footprint",
    "max_seq_len",
    "num_stored",
    "counters",
    "fork",
    "move",
)
SCHEDULER_CALLS = ("add", "plan", "commit", "choose_order", "enable_fast_forward")
PREEMPTION_CALLS = ("victim", "recovery")
ATOMS = (int, float, str, bytes, bool, type(None), range, slice, Enum)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
PASSED_BY = (ModuleType, type, BuiltinMethodType)


def reached(*roots):
    """Everything that these objects lead to, in order, each object once: types, atoms and the shape
    of the graph.
    """
    seen, kept, found, todo = {}, [], [], list(reversed(roots))
    while todo:
        item = todo.pop()
        if isinstance(item, ATOMS):
            found.append(repr(item))
            continue
        if isinstance(item, PASSED_BY):
            continue
        if id(item) in seen:
            found.append(f"#{seen[id(item)]}")
            continue
        seen[id(item)] = len(seen)
        kept.append(item)  # no id may be used again
        found.append(type(item).__name__)
        todo += reversed(list(inside(item)))
    return found


def inside(item):
    """Everything reachable from an object: items, attributes, closures. Globals are not
    followed.
    """
    kind = type(item)
    yield from parts_of(kind)(item)
    for name in slots_of(kind):
        if hasattr(item, name):
            yield from (name, getattr(item, name))
    if kind is not FunctionType:
        yield from chain.from_iterable(getattr(item, "__dict__", {}).items())


@cache
def parts_of(kind):
    """A function that lists what an object of this type holds besides its attributes."""
    return next((parts for base, parts in PARTS.items() if issubclass(kind, base)), of_another)


@cache
def slots_of(kind):
    """The names of a type's slots, those of its bases after its own."""
    slots = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    return [name for names in slots for name in ((names,) if isinstance(names, str) else names)]


def of_sequence(item):
    """Its items; of a long list of numbers one text."""
    return (repr(item),) if set(map(type, item)) <= {int} else item


def of_another(item):
    """A count, a range of a C type, an object without attributes: nothing but how it is
    shown, without its address.
    """
    shown = ADDRESS.sub("", repr(item))
    return () if slots_of(type(item)) or hasattr(item, "__dict__") else (shown,)


PARTS = {
    MethodType: lambda method: (method.__self__, method.__func__),
    FunctionType: lambda built: (
        built.__closure__,
        built.__defaults__,
        built.__kwdefaults__,
        built.__dict__,
    ),
    CellType: lambda cell: (cell.cell_contents,),
    Mapping: lambda mapping: chain.from_iterable(mapping.items()),
    Set: lambda members: sorted(members, key=repr),
    tuple: of_sequence,
    list: of_sequence,
    deque: of_sequence,
}


class Log:
    """The inside view of one run: (time, call, digest of everything reached)."""

    def __init__(self):
        self.env = simpy.Environment(0)
        self.calls = []

    def before(self, time_ps):
        """The calls made before this time."""
        return [call for call in self.calls if call[0] < time_ps]

    def watch(self, kind, names):
        """A subclass that writes down every call and passes it on. Classes lead nowhere, so the log
        is not found, not even from a method that an object keeps.
        """
        here = type("Here", (), {"log": self})

        def watched(name):
            method = getattr(kind, name)

            def call(this, *arguments, **options):
                found = reached(this, arguments, options)
                digest = hashlib.sha1("\n".join(found).encode()).hexdigest()
                here.log.calls.append((int(here.log.env.now), name, digest))
                return method(this, *arguments, **options)

            return call

        # A method that a class lacks is a capability that it must not seem to have.
        own = [name for name in names if callable(getattr(kind, name, None))]
        return type(kind.__name__, (kind,), {name: watched(name) for name in own})


def serve(requests, policy, pool, scheduler, preemption):
    """The log of a run, and when each request ended, or was turned away."""
    log = Log()
    memory = log.watch(policy, POLICY_CALLS)(pool, block_size=4)
    rule = log.watch(preemption, PREEMPTION_CALLS)(COST)
    limits = {"max_num_batched_tokens": 24, "max_num_seqs": 12}
    serving = log.watch(scheduler, SCHEDULER_CALLS)(memory, rule, **limits)
    columns = simulate(requests, serving, COST, MAX_LEN, env=log.env).requests.columns()
    at = [
        max(end, arrival)
        for end, arrival in zip(columns["finish_ps"], columns["arrival_ps"], strict=True)
    ]
    return log, dict(zip(columns["request_id"].tolist(), map(int, at), strict=True))


def observations_of_both(requests, others, *arguments):
    """The calls of either run before the first output that differs ended in either."""
    (one, ends), (two, other_ends) = serve(requests, *arguments), serve(others, *arguments)
    differing = [
        a.request_id for a, b in zip(requests, others, strict=True) if a.output_len != b.output_len
    ]
    until_ps = min(min(ends[i], other_ends[i]) for i in differing)
    return one.before(until_ps), two.before(until_ps)


REQUESTS = [
    Request(
        i,
        arrival_ps=i * 10**9,
        prompt_len=10,
        output_len=20,
        num_seqs=1 + i % 2,
        prompt_ids=tuple(range(10)),
    )
    for i in range(6)
]
OTHERS = [
    *REQUESTS[:4],
    *(request._replace(output_len=14 + request.request_id) for request in REQUESTS[4:]),
]
POOL = PoolSpec(3 * MAX_LEN, MAX_LEN, host(96))


@pytest.mark.parametrize("scheduler", [SeparatePrefill, MixedPrefill, ChunkedPrefill])
@pytest.mark.parametrize("policy", [Paged, PrefixCaching, ContiguousMax])
def test_policies_cannot_observe_unknown_output_lengths(policy, scheduler):
    one, two = observations_of_both(
        REQUESTS, OTHERS, policy, POOL, scheduler, RecomputeSingleSwapGroup
    )
    assert one == two
    assert len(one) > 20


@pytest.mark.parametrize("arrival_ps", [18_500_000_000, 19_000_000_000])
def test_an_audit_after_a_span_does_not_tell_that_an_output_has_ended(arrival_ps):
    """Both spans end at 20 ms, because a request arrives, and in one of them an output is over. An
    asynchronous scheduler that does not ignore ends sees it an iteration later; an audit that
    left out such spans showed it to the policy at once.
    """
    (one, end_ps), (two, _) = (serve_ahead(length, arrival_ps) for length in (20, 30))
    assert end_ps == 20 * MS
    assert one.before(end_ps) == two.before(end_ps)
    assert (19 * MS, "usage") in [call[:2] for call in one.calls]


def serve_ahead(output_len, arrival_ps):
    """The log of a run in spans, and when its first request ended."""
    log = Log()
    policy = log.watch(Paged, POLICY_CALLS)(PoolSpec(256, 128), block_size=4)
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
    release = {"long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": False}
    scheduler = AsyncVllmV1(policy, Recompute(), ignore_eos=False, **limits, **release)
    requests = [
        Request(0, arrival_ps=0, prompt_len=10, output_len=output_len),
        Request(1, arrival_ps=arrival_ps, prompt_len=10, output_len=5),
    ]
    columns = simulate(requests, scheduler, FastMillisecond(), 128, env=log.env).requests.columns()
    return log, int(columns["finish_ps"][columns["request_id"].tolist().index(0)])


# Each of these plants a leak: the test above must be able to fail.
def is_caught():
    one, two = observations_of_both(REQUESTS, OTHERS, Paged, POOL, MixedPrefill, Swap)
    assert one
    assert two
    return one != two


def test_request_with_its_output_length_is_detected(monkeypatch):
    monkeypatch.setattr(Request, "incoming", property(lambda request: request))
    assert is_caught()


def test_guaranteed_steps_limited_by_output_length_is_detected(monkeypatch):
    engines = []
    start, offer = Outputs.__init__, IterationLevel.enable_fast_forward

    def started(outputs, *arguments):
        start(outputs, *arguments)
        engines.append(outputs)

    def offered(scheduler, plan):
        offer(scheduler, plan)
        if plan.guaranteed_steps:
            scheduler.policy.max_seq_len(engines[-1].steps_to_change(), 1)

    monkeypatch.setattr(Outputs, "__init__", started)
    monkeypatch.setattr(IterationLevel, "enable_fast_forward", offered)
    assert is_caught()


@pytest.mark.parametrize("hidden", ["closure", "default", "bound method", "container"])
def test_output_lengths_behind_an_attribute_are_detected(hidden, monkeypatch):
    start = Outputs.__init__

    def started(outputs, state, *arguments):
        start(outputs, state, *arguments)
        lengths = outputs.lengths
        state.policy.notes = {
            "closure": lambda: lengths,
            "default": lambda known=lengths: known,
            "bound method": outputs.steps_to_change,
            "container": deque([{"known": (lengths,)}]),
        }[hidden]

    monkeypatch.setattr(Outputs, "__init__", started)
    assert is_caught()
