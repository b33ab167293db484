"""The page of `testbed show memory` in a real browser: it replays what was traced, and answers
clicks.
"""

import json
from dataclasses import replace
from functools import cache

import pytest
from tiny import OneMillisecond, analytic, server
from tiny_run import tiny_run

from testbed.core.layers import KvGroup
from testbed.core.request import PS, Request
from testbed.core.specs import TierSpec
from testbed.engine.memory_trace import trace_memory
from testbed.experiments.memory_map.map_page import page, retrace
from testbed.experiments.runs.run_folder import read_config
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill

FREE, ROUNDING, CACHED, IN_TRANSIT, PINNED, INTERNAL, RESERVED, LIVE = range(8)
NO_OWNER, SEVERAL = -1, -2
SHARED = ("workload.num_seqs=3", "preemption=swap")


def shown(browser, folder, trace, at=""):
    """Write a trace's page and open it at a place; the trace."""
    (folder / "page.html").write_text(page(trace, "<b>& odd</b>"))
    browser.open((folder / "page.html").as_uri() + at)
    return trace


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """Opens the page of the tiny run with some options, at a place given by the hash; the trace."""

    @cache
    def traced(options, blocks):
        folder = tmp_path_factory.mktemp("page")
        return folder, retrace(
            read_config(tiny_run(folder / "run", *options, blocks=blocks)), 0, None
        )

    return lambda *options, blocks=18, at="": shown(browser, *traced(options, blocks), at)


def slots_of(trace, frame, pool=0):
    """Kind, owner and number of holders of each slot; of several kinds, a slot is the last."""
    size = [trace.num_slots, *trace.tiers.values()][pool]
    kind, owner, holders = [FREE] * size, [NO_OWNER] * size, [0] * size
    for code, extents in sorted(
        zip((PINNED, CACHED, ROUNDING, IN_TRANSIT), frame.pools[pool], strict=True)
    ):
        for start, length in extents:
            kind[start : start + length] = [code] * length
    for seq_id, held in () if pool else frame.held.items():
        request, each = trace.requests[held.request_id], trace.parts[seq_id % len(trace.parts)][1]
        slots = (slot for start, length in held.device for slot in range(start, start + length))
        for logical, slot in enumerate(slots):
            token = held.first + logical // each if each else 0
            unfilled = RESERVED if token < request.final_len else INTERNAL
            kind[slot] = max(kind[slot], LIVE if token < held.num_tokens else unfilled)
            owner[slot] = held.request_id if owner[slot] in (NO_OWNER, held.request_id) else SEVERAL
            holders[slot] += 1
    return {"kind": kind, "owner": owner, "holders": holders}


def assert_replayed(browser, trace, pool=0):
    """The page shows every frame as Python does, forwards and backwards; the page's states."""
    browser.value(f"app.view({pool})")
    replayed, backwards = browser.value("""(() => {
      const at = i => {
        app.replay.seek(i);
        const slots = paint(app.replay);
        const seqs = [...app.replay.seqs.values()].sort((a, b) => a.id - b.id);
        return {seqs: seqs.map(
            seq => [seq.id, seq.request, seq.tokens, seq.device, seq.host, seq.first]),
                kind: [...slots.kind], owner: [...slots.owner], holders: [...slots.holders]};
      };
      const places = app.data.frames.map((_, i) => i), forth = places.map(at);
      const same = i => JSON.stringify(at(i)) === JSON.stringify(forth[i]);
      return [forth, places.reverse().every(i => i % 9 > 0 || same(i))];
    })()""")
    assert backwards
    for state, frame in zip(replayed, trace.frames, strict=True):
        seqs = json.loads(
            json.dumps([[seq_id, *held] for seq_id, held in sorted(frame.held.items())])
        )
        assert state == {"seqs": seqs, **slots_of(trace, frame, pool)}
    return replayed


@pytest.mark.parametrize(
    ("options", "blocks"),
    [((), 9), (SHARED, 18), (("policy=contiguous_pow2",), 24), (("policy=contiguous_max",), 40)],
)
def test_page_replays_every_state_and_opens_at_the_fullest(opened, browser, options, blocks):
    trace = opened(*options, blocks=blocks)
    fullest = max(trace.frames, key=lambda frame: sum(map(bool, slots_of(trace, frame)["holders"])))
    assert browser.value("app.time") == fullest.start_ps / PS
    replayed = assert_replayed(browser, trace)
    assert any(NO_OWNER not in state["owner"] for state in replayed) or blocks > 9


@pytest.fixture
def traced(browser, tmp_path):
    """Opens the page of many requests, served by a policy at so much per iteration; the trace."""

    def show(policy, pool, cost=None, prefixes=()):
        scheduler = SeparatePrefill(
            policy, Recompute(), max_num_batched_tokens=2560, max_num_seqs=256
        )
        trace = trace_memory(
            [*alike(32, prefixes)], scheduler, cost or OneMillisecond(), 64, pool=pool
        )
        return shown(browser, tmp_path, trace)

    return show


def alike(num_requests, prefixes):
    """Requests of which many begin alike, some with a registered prefix of 8 tokens."""
    for i, n in enumerate([9, 12, 17, 9, 21, 13, 30, 9] * (num_requests // 8)):
        known = {
            "prompt_ids": tuple(range(i % 4, i % 4 + n)),
            "registered_prefix": 8 * (i % 7 in prefixes),
        }
        yield Request(i, i * PS // 2000, n, 3 + i % 5, **known)


def test_page_replays_a_prefix_cache(traced, browser):
    policy = PrefixCaching(PoolSpec(96, 64), block_size=4)
    policy.register_prefix(8)
    replayed = assert_replayed(browser, traced(policy, PoolSpec(96, 64), prefixes=(0,)))
    assert {kind for state in replayed for kind in state["kind"]} >= {
        FREE,
        CACHED,
        PINNED,
        RESERVED,
        LIVE,
    }
    assert any(SEVERAL in state["owner"] for state in replayed)


@pytest.mark.parametrize("rule", ["one_page_size", "large_pages", "fixed_split"])
def test_page_replays_kv_groups(traced, browser, rule):
    """A window of 8 tokens beside full attention: what it gives back, and what pages leave
    unused.
    """
    groups = (KvGroup("full", 2, 64), KvGroup("window", 3, 64, 8))
    policy = GroupedCaching(PoolSpec(96, 64, layer_bytes=64, num_layers=5, groups=groups), 4, rule)
    trace = traced(policy, policy.pool)
    window = [("window", 2), ("window", 1)] if rule == "one_page_size" else [("window", 3)]
    assert [(name[:6], each) for name, each in trace.parts] == [("full", 2), *window]
    replayed = assert_replayed(browser, trace)
    assert any(seq[5] for state in replayed for seq in state["seqs"]), (
        "a window has given blocks back"
    )
    assert (ROUNDING in {kind for state in replayed for kind in state["kind"]}) == (
        rule != "fixed_split"
    )
    browser.value("app.show(app.data.fullest)")
    first = "[...app.replay.seqs.values()][0]"
    assert browser.value(f"app.replay.names.get({first}.id)").endswith(", full")
    browser.value(f"(app.order = 'group', app.redraw(), app.choose({{request: {first}.request}}))")
    assert "group window" in browser.text("#legend")
    assert browser.value("document.querySelectorAll('#request table').length") == len(trace.parts)


def test_page_replays_tiers(traced, browser):
    pool = PoolSpec(120, 64, (Tier("dram", 200),))
    on = replace(server(), tiers={"dram": TierSpec(1.0, 1e7, 1e7)})
    trace = traced(TieredCaching(pool, block_size=4), pool, analytic(on))
    assert trace.tiers == {"dram": 200}
    for place in (0, 1):
        states = assert_replayed(browser, trace, place)
        assert {CACHED, IN_TRANSIT} <= {kind for state in states for kind in state["kind"]}
    browser.value("app.show(app.data.end)")
    assert browser.value("document.querySelector('#pool-choice').selectedOptions[0].text") == "dram"
    browser.value("app.open(location.hash)")
    assert browser.value("app.data.pool") == 1, "the address keeps the pool"


def test_clicks_choose_blocks_and_requests(opened, browser):
    trace = opened(at="#t=0.3")
    assert browser.text("h1") == "<b>& odd</b>"
    x, y = browser.value("app.grid.place(3)")
    browser.click("#grid", x=x + 5, y=y + 5)
    assert "Block 3: reference count 1; " in browser.text("#block")
    browser.press("Escape")
    assert [browser.text(name)[:7] for name in ("#block", "#request")] == ["Click a"] * 2
    browser.click("#device [data-request='0']")
    rows = browser.value(
        "[...document.querySelectorAll('#request tbody tr')].map(row => row.innerText.split('\\t'))"
    )
    held = max((f for f in trace.frames if f.start_ps <= 0.3e12), key=lambda f: f.start_ps).held[0]
    assert rows == [
        [str(i), str(extent.start // 4), str(min(4, held.num_tokens - 4 * i)), "1"]
        for i, extent in enumerate(held.device)
    ]
    browser.click("#request tbody tr:nth-child(2)")
    assert f"Block {rows[1][1]}: reference count 1" in browser.text("#block")


def test_swapped_requests_are_listed_with_their_host_blocks(opened, browser):
    trace = opened(*SHARED)
    frame, held = next((f, held) for f in trace.frames for held in f.held.values() if held.host)
    browser.value(f"app.show({frame.start_ps / 1e12})")
    assert f"request {held.request_id} host block" in browser.text("#host")
    browser.click(f"#host [data-request='{held.request_id}']")
    assert "host 0" in browser.text("#request")


def test_sorted_blocks_keep_their_numbers(opened, browser):
    opened(blocks=200, at="#t=0.2")
    assert browser.value("app.grid.columns") > 8
    ordered = []
    for order in ("address", "request", "kind"):
        browser.value(
            f"(list => [list.value = '{order}', list.dispatchEvent(new "
            f"Event('change'))])($('order'))"
        )
        ordered.append(browser.value("app.grid.blocks"))
        owners = browser.value(
            "app.grid.blocks.map(block => app.slots.owner[block * app.data.block_size])"
        )
        held = [owner for owner in owners if owner >= 0]
        assert order == "address" or owners[: len(held)] == held, "free blocks are last"
        assert order != "request" or held == sorted(held)
    assert ordered[0] == list(range(200))
    assert all(sorted(blocks) == ordered[0] for blocks in ordered)
    assert browser.value("app.grid.blockAt(...app.grid.place(199).map(place => place + 5))") == 199
    browser.value("app.choose({block: 199})")
    assert "Block 199: reference count 0; free" in browser.text("#block")


def test_keyboard_selects_blocks_and_requests(opened, browser):
    opened(*SHARED, at="#t=0.3")
    browser.tab_to("#grid")
    for key, block in (
        ("ArrowDown", 0),
        ("ArrowDown", 1),
        ("End", 17),
        ("ArrowUp", 16),
        ("Home", 0),
    ):
        browser.press(key)
        assert browser.value("app.chosen.block") == block, key
    assert "Block 0: reference count 3; 4 of 4 slots filled" in browser.text("#block")
    owners = (f"request 0.{i} logical block 0, 4 filled" for i in range(3))
    assert " ".join(browser.text("#owners").split()) == " ".join(owners)
    assert browser.value("[$('grid').ariaValueNow, $('grid').ariaValueText.slice(0, 7)]") == [
        "0",
        "Block 0",
    ]
    browser.tab_to("#owners button")
    browser.press("Enter")
    assert browser.value("app.chosen.request") == 0
    assert browser.value("document.activeElement.matches('#owners button')"), (
        "the focus stays where it was"
    )
    browser.tab_to("#request tbody tr:nth-child(2) button")
    browser.press("Enter")
    assert browser.text("#block").startswith(
        f"Block {browser.text('#request tbody tr:nth-child(2) button')}:"
    )
    browser.press("Escape")
    assert browser.value("[app.chosen.block, app.chosen.request]") == [None, None]


def test_keyboard_moves_time_and_plays(opened, browser):
    trace = opened(at="#t=0")
    browser.tab_to("#play")
    browser.press(" ")
    assert browser.value("[app.playing, $('play').ariaLabel]") == [True, "Pause"]
    browser.press("Enter")
    assert not browser.value("app.playing")
    browser.value("app.show(0)")
    for key, index, place in (
        ("ArrowRight", 1, "#play"),
        ("ArrowRight", 2, "#slider"),
        ("ArrowLeft", 1, "#slider"),
    ):
        browser.tab_to(place)
        browser.press(key)
        assert browser.value("app.time") == pytest.approx(trace.frames[index].start_ps / 1e12)
    assert browser.value("$('slider').getAttribute('aria-valuetext')") == browser.text("#time")


@pytest.mark.parametrize("width", [1400, 390])
def test_page_fits_the_screen_width_and_says_what_its_canvases_show(opened, browser, width):
    opened(*SHARED, at="#t=0.3&request=0")
    browser.resize(width)
    canvases = (
        "document.querySelectorAll('canvas:not([role][aria-label], [aria-hidden=true])').length"
    )
    assert browser.value(canvases) == 0
    assert browser.value("document.documentElement.scrollWidth") == width
    shown = browser.value(
        "app.grid.gap + 2 * app.grid.cellWidth + GUTTER + NUMBERS - app.grid.canvas.clientWidth"
    )
    assert shown <= 1e-6, "the first table of a request lies next to the blocks"
