"""Parts that are built by hand from values that no such part has: the key and the value."""

from dataclasses import replace

import pytest
from tiny import MODEL, server

from testbed.core.errors import InputError, OracleError
from testbed.core.layers import KvGroup
from testbed.core.request import Request
from testbed.core.sequence import Sequence, SequenceGroup
from testbed.cost.analytic import Efficiencies
from testbed.cost.auto import auto_cost
from testbed.cost.interpolation import Knots
from testbed.cost.sections import Choices, check_section, check_sizes, read_profile
from testbed.fleet.faults import parse_faults
from testbed.fleet.shared_tiers import sharer_of
from testbed.memory.capabilities import capabilities_of
from testbed.memory.contiguous.reservations import ContiguousPow2
from testbed.memory.dropping.prompt_budget import PromptBudget
from testbed.memory.groups.page_rule import pages_by
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.tiers.load_rules import LoadIfFaster
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.run.workload import checked_times, rows_of
from testbed.sched.beam_search import SyntheticBeams
from testbed.sched.plan import Plan
from testbed.sched.preemption import Recompute
from testbed.sched.retention import Retention
from testbed.sched.sglang import SGLang
from testbed.sched.static_batch import StaticBatch
from testbed.speculation.draft_model import DraftModel
from testbed.speculation.ngram import NGram

POOL = PoolSpec(600, 256)
FULL = KvGroup("full", 1, 8)
WINDOW = KvGroup("window", 1, 8, window=64)
STATE = KvGroup("state", 1, 0, state_bytes=64)
POINTS = {"axes": ["num_tokens"], "points": [[1, 5], [8, 9]]}
LATE = "engine 0 at 99999999999999 s"


class LoadsWithoutPublishing(Paged):
    """Has a capability that needs another, which it has not."""

    def background(self, *arguments):
        raise NotImplementedError

    def landed(self, *arguments):
        raise NotImplementedError

    def load(self, *arguments):
        raise NotImplementedError


def pages(*groups, rule="one_page_size", share=0.8):
    return lambda: pages_by(rule, replace(POOL, groups=groups), 16, share)


class NoRows:
    def rows(self, num_rows, seed, max_len):
        return [1, 2]


def ordered(name, **options):
    return lambda: SGLang(
        Paged(POOL), Recompute(), max_running_requests=4, schedule_policy=name, **options
    )


def section(**wrong):
    return lambda: check_section("linear", {**POINTS, **wrong}, "s")


REFUSED = {
    "a pool of half a slot": (lambda: PoolSpec(8.5, 64), "PoolSpec: num_slots", "8.5"),
    "a longest sequence as text": (lambda: PoolSpec(8, "64"), "PoolSpec: max_len", "'64'"),
    "too large blocks": (lambda: Paged(POOL, 257), "block_size", "257"),
    "blocks of nothing": (lambda: Paged(POOL, 0), "block_size", "0"),
    "a capability without what it needs": (
        lambda: capabilities_of(LoadsWithoutPublishing(POOL)),
        "policy",
        "LoadsWithoutPublishing",
    ),
    "pages of no groups": (pages(), "policy", "grouped"),
    "pages of unlike groups": (pages(FULL, KvGroup("window", 1, 16, 64)), "policy", "grouped"),
    "a share that nothing reads": (pages(FULL, WINDOW, share=0.5), "window_share", "0.5"),
    "a share of nothing": (pages(FULL, WINDOW, rule="fixed_split", share=0), "window_share", "0"),
    "a share for states": (pages(FULL, STATE, rule="fixed_split"), "page_rule", "fixed_split"),
    "a prefill that stands still": (lambda: LoadIfFaster(0), "prefill_tokens_per_s", "0"),
    "a load from a tier without a bandwidth": (
        lambda: LoadIfFaster(10.0).is_worth(POOL, Tier("dram", 64), 16),
        "the load rule LoadIfFaster",
        None,
    ),
    "a tier that is not shared": (
        lambda: sharer_of(capabilities_of(Paged(POOL))),
        "policy",
        "Paged",
    ),
    "a tier of other blocks": (
        lambda: TieredCaching(replace(POOL, tiers=(Tier("dram", 64),)), 16).share_tiers(
            TieredCaching(replace(POOL, tiers=(Tier("dram", 64),)), 8).lower_tiers()
        ),
        "server.tiers.dram",
        None,
    ),
    "beams of no concentration": (lambda: SyntheticBeams(0), "beams.concentration", "0"),
    "retention without leases": (
        lambda: Retention(capabilities_of(PromptBudget(POOL)), 1.0),
        "order",
        "time_to_live",
    ),
    "an unknown order": (ordered("newest"), "scheduler.schedule_policy", "newest"),
    "priorities by another order": (
        ordered("random", enable_priority_scheduling=True),
        "scheduler.schedule_policy",
        "random",
    ),
    "an order of prefixes without a cache": (
        ordered("shortest-prefill-first"),
        "scheduler.schedule_policy",
        "shortest-prefill-first",
    ),
    "an order by keys that requests lack": (
        ordered("routing-key"),
        "scheduler.schedule_policy",
        "routing-key",
    ),
    "a drafter that is no model": (lambda: DraftModel(drafter=5), "drafter", "5"),
    "a longest match below the shortest": (
        lambda: NGram(lookup_min=4, lookup_max=3),
        "speculation.lookup_min",
        "4",
    ),
    "acceptance as a number": (
        lambda: NGram(acceptance=0.7),
        "speculation.acceptance",
        "float",
    ),
    "a fault after the end of time": (
        lambda: parse_faults(LATE, 2),
        "faults",
        LATE,
    ),
    "no such profile": (lambda: read_profile("nowhere"), "no profile nowhere", None),
    "sizes of graphs as a number": (lambda: check_sizes(5, "p"), "p", None),
    "a graph of no token": (lambda: check_sizes([1, 0], "p"), "p", None),
    "a section that nothing reads": (lambda: check_section("other", POINTS, "s"), "s", None),
    "a section without points": (section(points=[]), "s", None),
    "a section of other axes": (section(axes=["seconds"]), "s", None),
    "a point without a time": (section(points=[[1, 5], [8]]), "s, point 2", None),
    "a point of a negative number of tokens": (section(points=[[-1, 5]]), "s, point 1", None),
    "a point twice": (section(points=[[1, 5], [2, 6], [1, 5]]), "s, point 3", None),
    "a negative time": (section(points=[[1, -5]]), "s, point 1", None),
    "routing of experts by a roofline": (
        lambda: auto_cost(MODEL, server(), server().gpu, Choices(experts="skewed"), Efficiencies()),
        "cost.choices.experts",
        "skewed",
    ),
    "rows that are no rows": (lambda: rows_of(NoRows(), None, 0, None), None, None),
    "times in disorder": (lambda: checked_times(NGram(), [2, 1]), None, None),
    "times of unequal length": (lambda: checked_times(NGram(), [[1], [1, 2]]), None, None),
}
WITH_REMEDY = {
    "a capability without what it needs",
    "pages of no groups",
    "pages of unlike groups",
    "a share that nothing reads",
    "a share for states",
    "a tier that is not shared",
    "a tier of other blocks",
    "retention without leases",
    "a drafter that is no model",
    "a longest match below the shortest",
    "a fault after the end of time",
    "a point twice",
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_key_and_the_value_of_a_part_that_is_refused(case):
    call, key, value = REFUSED[case]
    with pytest.raises(InputError) as caught:
        call()
    assert (caught.value.key, caught.value.value) == (key or caught.value.key, value)
    assert caught.value.key != "None"
    assert bool(caught.value.remedy) is (case in WITH_REMEDY)


def test_a_curve_has_a_point():
    with pytest.raises(ValueError, match="at least one point"):
        Knots([])


def test_oracles_without_the_future_say_so():
    group = SequenceGroup(Request(0, 0, 8, 4).incoming, [])
    static = StaticBatch(ContiguousPow2(POOL), Recompute(), max_batch_size=4, max_padded_len=64)
    for call in (
        lambda: ContiguousPow2(POOL).reservation(Sequence(0, group.request)),
        lambda: static._takes(group, Plan()),
    ):
        with pytest.raises(OracleError, match="without true output lengths"):
            call()
