"""Nobody who does not declare it can know how long an output will be, by whatever an argument leads to.

Two runs of the same requests but for output lengths must look the same from inside until the first of the outputs that
differ has ended: every call, every argument, every attribute that can be reached from it.
"""

import hashlib
from collections import deque
from collections.abc import Mapping, Set
from enum import Enum
from types import BuiltinMethodType, CellType, FunctionType, MethodType, ModuleType

import hypothesis.strategies as st
import pytest
import simpy
from hypothesis import HealthCheck, given, settings

from testbed.core.request import Request
from testbed.core.sequence import Sequence
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap
from testbed.sched.scheduler import Scheduler
from testbed.sched.separate import SeparatePrefill
from testbed.sim.outputs import Outputs
from testbed.sim.simulation import simulate

MAX_LEN = 48
MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, MAX_LEN)
SERVER = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1)
COST = AnalyticCost(MODEL, SERVER, Efficiencies(overhead_s=1e-3, copy_s=1e-5))
POLICY_CALLS = (
    "admit", "extend", "release", "table", "usage", "computed", "horizon", "footprint", "longest", "stored", "counters",
    "fork", "move",
)  # fmt: skip
SCHEDULER_CALLS = ("add", "plan", "commit", "choose_order", "offer")
PREEMPTION_CALLS = ("victim", "recovery")
ATOMS = (int, float, str, bytes, bool, type(None), range, slice, Enum)
SLOTS = {"__slots__", "__mypyc_attrs__"}  # of a class, of a compiled one
PASSED_BY = (ModuleType, type, BuiltinMethodType)


def reached(*roots):
    """Everything that these objects lead to, in order, each object once: types, atoms and the shape of the graph."""
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
    """What an object leads to: items, attributes, what a function closes over. Globals are not followed."""
    if isinstance(item, MethodType):
        yield from (item.__self__, item.__func__)
    elif isinstance(item, FunctionType):
        yield from (item.__closure__, item.__defaults__, item.__kwdefaults__, item.__dict__)
    elif isinstance(item, CellType):
        yield item.cell_contents
    elif isinstance(item, Mapping):
        for pair in item.items():
            yield from pair
    elif isinstance(item, Set):
        yield from sorted(item, key=repr)
    elif isinstance(item, tuple | list | deque):
        yield from item
    elif not hasattr(item, "__dict__") and not any(vars(kind).keys() & SLOTS for kind in type(item).__mro__):
        yield repr(item)  # a count, a range of a C type
    for kind in type(item).__mro__:
        slots = next((vars(kind)[name] for name in SLOTS if name in vars(kind)), ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(item, name):
                yield from (name, getattr(item, name))
    if not isinstance(item, FunctionType):
        yield from getattr(item, "__dict__", {}).items()


class Log:
    """What one run looks like from inside: (time, call, digest of everything reached)."""

    def __init__(self):
        self.env = simpy.Environment(0)
        self.calls = []

    def before(self, time_ps):
        """The calls made before this time."""
        return [call for call in self.calls if call[0] < time_ps]

    def watch(self, kind, names):
        """A subclass that writes down every call and passes it on. Classes lead nowhere, so the log is not found."""

        def watched(name):
            method = getattr(kind, name)

            def call(this, *arguments, **options):
                found = reached(this, arguments, options)
                self.calls.append((int(self.env.now), name, hashlib.sha1("\n".join(found).encode()).hexdigest()))
                return method(this, *arguments, **options)

            return call

        # choose_order is left alone where it is nobody's own, because overriding it says that the queue is reordered
        own = [name for name in names if getattr(kind, name) is not Scheduler.choose_order]
        return type(kind.__name__, (kind,), {name: watched(name) for name in own})


def serve(requests, policy, pool, scheduler, preemption, fast_forward=True):
    """The log of a run, and when each request ended, or was turned away."""
    log = Log()
    memory = log.watch(policy, POLICY_CALLS)(pool, block_size=4)
    rule = log.watch(preemption, PREEMPTION_CALLS)(COST)
    limits = {"max_num_batched_tokens": 24, "max_num_seqs": 12}
    serving = log.watch(scheduler, SCHEDULER_CALLS)(memory, rule, **limits)
    columns = simulate(requests, serving, COST, MAX_LEN, env=log.env, fast_forward=fast_forward).requests.columns()
    at = [max(end, arrival) for end, arrival in zip(columns["finish_ps"], columns["arrival_ps"], strict=True)]
    return log, dict(zip(columns["request_id"].tolist(), map(int, at), strict=True))


def seen_alike(requests, others, *arguments):
    """What either run has seen before the first output that differs ended in either."""
    (one, ends), (two, other_ends) = serve(requests, *arguments), serve(others, *arguments)
    differing = [a.request_id for a, b in zip(requests, others, strict=True) if a.output_len != b.output_len]
    until_ps = min(min(ends[i], other_ends[i]) for i in differing)
    return one.before(until_ps), two.before(until_ps)


@st.composite
def workloads(draw):
    """Requests, the same with other output lengths for some late and long ones, and a pool that is soon full."""
    size, gap_ps = draw(st.integers(3, 10)), draw(st.sampled_from([0, 2 * 10**9, 10**10]))
    width, beams = draw(st.sampled_from([1, 1, 2, 3])), draw(st.booleans())
    requests, others, at = [], [], 0
    lengths, long = st.integers(1, MAX_LEN // 2), st.integers(MAX_LEN // 3, MAX_LEN // 2)
    late = draw(st.integers(0, size - 1))
    for i in range(size):
        at += draw(st.integers(0, gap_ps))
        num_seqs, prompt_len = draw(st.integers(1, width)), draw(lengths)
        output_len, other = (draw(long), draw(long)) if i >= late else [draw(lengths)] * 2
        ids = tuple(k if k < 8 else -i for k in range(prompt_len))
        requests.append(Request(i, at, prompt_len, output_len, num_seqs, beams and num_seqs > 1, prompt_ids=ids))
        others.append(requests[-1]._replace(output_len=other))
    if requests == others:
        others[-1] = others[-1]._replace(
            output_len=MAX_LEN // 3 if others[-1].output_len > MAX_LEN // 3 else MAX_LEN // 2
        )
    return (
        requests,
        others,
        PoolSpec(max(2 * width, 3) * MAX_LEN // 2, MAX_LEN, host(draw(st.sampled_from([96, 0, 30])))),
    )


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    workloads(),
    st.sampled_from([Paged, Paged, PrefixCaching, ContiguousMax]),
    st.sampled_from([SeparatePrefill, MixedPrefill, ChunkedPrefill]),
    st.sampled_from([Swap, Recompute, RecomputeSingleSwapGroup]),
    st.booleans(),
)
def test_two_futures_look_the_same_until_they_differ(workload, policy, scheduler, preemption, fast_forward):
    requests, others, pool = workload
    one, two = seen_alike(requests, others, policy, pool, scheduler, preemption, fast_forward)
    assert one == two


# Each of these plants a leak: the test above must be able to fail.
plants = pytest.mark.skipif(
    not isinstance(Outputs.arrived, FunctionType), reason="nothing can be replaced in a compiled simulator"
)

REQUESTS = [Request(i, i * 10**9, 10, 20) for i in range(3)]
POOL = PoolSpec(3 * MAX_LEN, MAX_LEN, host(96))
OTHERS = [*REQUESTS[:2], REQUESTS[2]._replace(output_len=15)]


def is_caught():
    one, two = seen_alike(REQUESTS, OTHERS, Paged, POOL, MixedPrefill, Swap)
    assert one
    assert two
    return one != two


def test_without_a_leak_nothing_is_caught():
    assert not is_caught()


@plants
def test_a_request_that_carries_its_output_length_is_caught(monkeypatch):
    monkeypatch.setattr(Request, "incoming", property(lambda request: request))
    assert is_caught()


@plants
def test_a_sequence_that_carries_its_output_length_is_caught(monkeypatch):
    lengths, arrive = {}, Outputs.arrived

    def arrived(outputs, request):
        lengths[request.request_id] = request.output_len
        arrive(outputs, request)

    class Carrying(Sequence):
        __slots__ = ("output_len",)

        def __init__(self, seq_id, request):
            super().__init__(seq_id, request)
            self.output_len = lengths[request.request_id]

    monkeypatch.setattr("testbed.sched.scheduler.Sequence", Carrying)
    monkeypatch.setattr(Outputs, "arrived", arrived)
    assert is_caught()


@plants
def test_a_horizon_that_is_told_the_limit_is_caught(monkeypatch):
    engines = []
    start, offer = Outputs.__init__, Scheduler.offer

    def started(outputs, *arguments):
        start(outputs, *arguments)
        engines.append(outputs)

    def offered(scheduler, plan, prompts):
        offer(scheduler, plan, prompts)
        if plan.horizon:
            scheduler.policy.stored(engines[-1].steps_to_end())

    monkeypatch.setattr(Outputs, "__init__", started)
    monkeypatch.setattr(Scheduler, "offer", offered)
    assert is_caught()


@plants
@pytest.mark.parametrize("hidden", ["closure", "default", "bound method", "container"])
def test_a_future_behind_an_attribute_is_caught(hidden, monkeypatch):
    start = Outputs.__init__

    def started(outputs, residents, beams):
        start(outputs, residents, beams)
        lengths = outputs.lengths
        residents.preemption.notes = {
            "closure": lambda: lengths,
            "default": lambda known=lengths: known,
            "bound method": outputs.steps_to_end,
            "container": deque([{"known": (lengths,)}]),
        }[hidden]

    monkeypatch.setattr(Outputs, "__init__", started)
    assert is_caught()
