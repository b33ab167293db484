"""The page of `testbed show memory` in a real browser: it replays what was traced, and answers
clicks.
"""

import json
from dataclasses import replace
from functools import cache

import pytest
from browser import PHONE, WIDE, tab_to
from tiny import OneMillisecond, analytic, server
from tiny_run import tiny_run
from traced_memory import trace_memory

from testbed.core.layers import KvGroup
from testbed.core.request import PS, Request
from testbed.core.specs import TierSpec
from testbed.experiments.look.memory_map.map_page import page, retrace
from testbed.experiments.look.memory_map.request_colors import NUM_HUES
from testbed.experiments.runs.run_folder import read_config
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill

FREE, ROUNDING, CACHED, IN_TRANSIT, PINNED, INTERNAL, RESERVED, LIVE = range(8)
NO_OWNER, SEVERAL = -1, -2
SHARED = ("workload.num_seqs=3", "preemption=swap")


def show(web_page, folder, trace, at=""):
    """Write a trace's page and open it at a place."""
    path = folder / "page.html"
    path.write_text(page(trace, "<b>& odd</b>"))
    web_page.goto(path.as_uri() + at)


@pytest.fixture(scope="module")
def tiny_trace(tmp_path_factory):
    """The folder and trace of the tiny run with some options."""

    @cache
    def traced(options, blocks):
        folder = tmp_path_factory.mktemp("page")
        config = read_config(tiny_run(folder / "run", *options, blocks=blocks))
        return folder, retrace(config, 0, None)

    return traced


@pytest.fixture
def opened(web_page, tiny_trace):
    """Opens the page of the tiny run with some options, at a place given by the hash; the trace."""

    def open_page(*options, blocks=18, at=""):
        folder, trace = tiny_trace(options, blocks)
        show(web_page, folder, trace, at)
        return trace

    return open_page


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


def assert_replayed(web_page, trace, pool=0):
    """The page shows every frame as Python does, forwards and backwards; the page's states."""
    web_page.evaluate(f"app.view({pool})")
    replayed, backwards = web_page.evaluate("""(() => {
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
def test_page_replays_every_state_and_opens_at_the_fullest(opened, web_page, options, blocks):
    trace = opened(*options, blocks=blocks)
    fullest = max(trace.frames, key=lambda frame: sum(map(bool, slots_of(trace, frame)["holders"])))
    assert web_page.evaluate("app.time") == fullest.start_ps / PS
    replayed = assert_replayed(web_page, trace)
    assert any(NO_OWNER not in state["owner"] for state in replayed) or blocks > 9


@pytest.fixture
def traced(web_page, tmp_path):
    """Opens the page of many requests, served by a policy at so much per iteration; the trace."""

    def open_page(policy, pool, cost=None, prefixes=()):
        scheduler = SeparatePrefill(
            policy, Recompute(), max_num_batched_tokens=2560, max_num_seqs=256
        )
        trace = trace_memory(
            [*alike(32, prefixes)], scheduler, cost or OneMillisecond(), 64, pool=pool
        )
        show(web_page, tmp_path, trace)
        return trace

    return open_page


def alike(num_requests, prefixes):
    """Requests of which many begin alike, some with a registered prefix of 8 tokens."""
    for i, n in enumerate([9, 12, 17, 9, 21, 13, 30, 9] * (num_requests // 8)):
        known = {
            "prompt_ids": tuple(range(i % 4, i % 4 + n)),
            "registered_prefix": 8 * (i % 7 in prefixes),
        }
        yield Request(i, i * PS // 2000, n, 3 + i % 5, **known)


def test_page_replays_a_prefix_cache(traced, web_page):
    policy = PrefixCaching(PoolSpec(96, 64), block_size=4)
    policy.register_prefix(8)
    replayed = assert_replayed(web_page, traced(policy, PoolSpec(96, 64), prefixes=(0,)))
    assert {kind for state in replayed for kind in state["kind"]} >= {
        FREE,
        CACHED,
        PINNED,
        RESERVED,
        LIVE,
    }
    assert any(SEVERAL in state["owner"] for state in replayed)


@pytest.mark.parametrize("rule", ["one_page_size", "large_pages", "fixed_split"])
def test_page_replays_kv_groups(traced, web_page, rule):
    """A window of 8 tokens beside full attention: what it gives back, and what pages leave
    unused.
    """
    groups = (KvGroup("full", 2, 64), KvGroup("window", 3, 64, 8))
    policy = GroupedCaching(
        PoolSpec(96, 64, layer_bytes=64, num_layers=5, groups=groups), 4, page_rule=rule
    )
    trace = traced(policy, policy.pool)
    window = [("window", 2), ("window", 1)] if rule == "one_page_size" else [("window", 3)]
    assert [(name[:6], each) for name, each in trace.parts] == [("full", 2), *window]
    replayed = assert_replayed(web_page, trace)
    assert any(seq[5] for state in replayed for seq in state["seqs"]), (
        "a window has given blocks back"
    )
    assert (ROUNDING in {kind for state in replayed for kind in state["kind"]}) == (
        rule != "fixed_split"
    )
    web_page.evaluate("app.show(app.data.fullest)")
    first = "[...app.replay.seqs.values()][0]"
    assert web_page.evaluate(f"app.replay.names.get({first}.id)").endswith(", full")
    web_page.evaluate(
        f"(app.order = 'group', app.redraw(), app.choose({{request: {first}.request}}))"
    )
    assert "group window" in web_page.inner_text("#legend")
    assert web_page.evaluate("document.querySelectorAll('#request table').length") == len(
        trace.parts
    )


def test_page_replays_tiers(traced, web_page):
    pool = PoolSpec(120, 64, (Tier("dram", 200),))
    on = replace(server(), tiers={"dram": TierSpec(1.0, 1e7, 1e7)})
    trace = traced(TieredCaching(pool, block_size=4), pool, analytic(on))
    assert trace.tiers == {"dram": 200}
    for place in (0, 1):
        states = assert_replayed(web_page, trace, place)
        assert {CACHED, IN_TRANSIT} <= {kind for state in states for kind in state["kind"]}
    web_page.evaluate("app.show(app.data.end)")
    assert (
        web_page.evaluate("document.querySelector('#pool-choice').selectedOptions[0].text")
        == "dram"
    )
    web_page.evaluate("app.open(location.hash)")
    assert web_page.evaluate("app.data.pool") == 1, "the address keeps the pool"


def test_clicks_choose_blocks_and_requests(opened, web_page):
    trace = opened(at="#t=0.3")
    assert web_page.inner_text("h1") == "<b>& odd</b>"
    x, y = web_page.evaluate("app.grid.place(3)")
    web_page.click("#grid", position={"x": x + 5, "y": y + 5})
    assert "Block 3: reference count 1; " in web_page.inner_text("#block")
    web_page.keyboard.press("Escape")
    assert [web_page.inner_text(name)[:7] for name in ("#block", "#request")] == ["Click a"] * 2
    web_page.click("#device [data-request='0']")
    rows = web_page.evaluate(
        "[...document.querySelectorAll('#request tbody tr')].map(row => row.innerText.split('\\t'))"
    )
    held = max((f for f in trace.frames if f.start_ps <= 0.3e12), key=lambda f: f.start_ps).held[0]
    assert rows == [
        [str(i), str(extent.start // 4), str(min(4, held.num_tokens - 4 * i)), "1"]
        for i, extent in enumerate(held.device)
    ]
    web_page.click("#request tbody tr:nth-child(2)")
    assert f"Block {rows[1][1]}: reference count 1" in web_page.inner_text("#block")


def test_swapped_requests_are_listed_with_their_host_blocks(opened, web_page):
    trace = opened(*SHARED)
    frame, held = next((f, held) for f in trace.frames for held in f.held.values() if held.host)
    web_page.evaluate(f"app.show({frame.start_ps / 1e12})")
    assert f"request {held.request_id} host block" in web_page.inner_text("#host")
    web_page.click(f"#host [data-request='{held.request_id}']")
    assert "host 0" in web_page.inner_text("#request")


def test_sorted_blocks_keep_their_numbers(opened, web_page):
    opened(blocks=200, at="#t=0.2")
    assert web_page.evaluate("app.grid.columns") > 8
    ordered = []
    for order in ("address", "request", "kind"):
        web_page.evaluate(
            f"(list => [list.value = '{order}', list.dispatchEvent(new "
            f"Event('change'))])($('order'))"
        )
        ordered.append(web_page.evaluate("app.grid.blocks"))
        owners = web_page.evaluate(
            "app.grid.blocks.map(block => app.slots.owner[block * app.data.block_size])"
        )
        held = [owner for owner in owners if owner >= 0]
        assert order == "address" or owners[: len(held)] == held, "free blocks are last"
        assert order != "request" or held == sorted(held)
    assert ordered[0] == list(range(200))
    assert all(sorted(blocks) == ordered[0] for blocks in ordered)
    assert (
        web_page.evaluate("app.grid.blockAt(...app.grid.place(199).map(place => place + 5))") == 199
    )
    web_page.evaluate("app.choose({block: 199})")
    assert "Block 199: reference count 0; free" in web_page.inner_text("#block")


def test_keyboard_selects_blocks_and_requests(opened, web_page):
    opened(*SHARED, at="#t=0.3")
    tab_to(web_page, "#grid")
    for key, block in (
        ("ArrowDown", 0),
        ("ArrowDown", 1),
        ("End", 17),
        ("ArrowUp", 16),
        ("Home", 0),
    ):
        web_page.keyboard.press(key)
        assert web_page.evaluate("app.chosen.block") == block, key
    assert "Block 0: reference count 3; 4 of 4 slots filled" in web_page.inner_text("#block")
    owners = (f"request 0.{i} logical block 0, 4 filled" for i in range(3))
    assert " ".join(web_page.inner_text("#owners").split()) == " ".join(owners)
    assert web_page.evaluate("[$('grid').ariaValueNow, $('grid').ariaValueText.slice(0, 7)]") == [
        "0",
        "Block 0",
    ]
    tab_to(web_page, "#owners button")
    web_page.keyboard.press("Enter")
    assert web_page.evaluate("app.chosen.request") == 0
    assert web_page.evaluate("document.activeElement.matches('#owners button')"), (
        "the focus stays where it was"
    )
    tab_to(web_page, "#request tbody tr:nth-child(2) button")
    web_page.keyboard.press("Enter")
    assert web_page.inner_text("#block").startswith(
        f"Block {web_page.inner_text('#request tbody tr:nth-child(2) button')}:"
    )
    web_page.keyboard.press("Escape")
    assert web_page.evaluate("[app.chosen.block, app.chosen.request]") == [None, None]


def test_keyboard_moves_time_and_plays(opened, web_page):
    trace = opened(at="#t=0")
    tab_to(web_page, "#play")
    web_page.keyboard.press(" ")
    assert web_page.evaluate("[app.playing, $('play').ariaLabel]") == [True, "Pause"]
    web_page.keyboard.press("Enter")
    assert not web_page.evaluate("app.playing")
    web_page.evaluate("app.show(0)")
    for key, index, place in (
        ("ArrowRight", 1, "#play"),
        ("ArrowRight", 2, "#slider"),
        ("ArrowLeft", 1, "#slider"),
    ):
        tab_to(web_page, place)
        web_page.keyboard.press(key)
        assert web_page.evaluate("app.time") == pytest.approx(trace.frames[index].start_ps / 1e12)
    assert web_page.evaluate("$('slider').getAttribute('aria-valuetext')") == web_page.inner_text(
        "#time"
    )


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_page_fits_the_screen_width_and_says_what_its_canvases_show(opened, web_page, width):
    opened(*SHARED, at="#t=0.3&request=0")
    canvases = (
        "document.querySelectorAll('canvas:not([role][aria-label], [aria-hidden=true])').length"
    )
    assert web_page.evaluate(canvases) == 0
    assert web_page.evaluate("document.documentElement.scrollWidth") == width
    shown = web_page.evaluate(
        "app.grid.gap + 2 * app.grid.cellWidth + GUTTER + NUMBERS - app.grid.canvas.clientWidth"
    )
    assert shown <= 1e-6, "the first table of a request lies next to the blocks"


NEIGHBOURS = """(() => {
  const {grid, data, replay} = app, slots = paint(replay), size = data.block_size;
  const scale = grid.canvas.width / grid.canvas.clientWidth;
  const pen = grid.canvas.getContext("2d");
  const at = (x, y) => [...pen.getImageData(x * scale, y * scale, 1, 1).data.slice(0, 3)];
  const seen = grid.blocks.map(block => {
    const [x, y] = grid.place(block), dot = at(x + grid.cellWidth / 4 / size, y + 3);
    return {kind: slots.kind[block * size], owner: slots.owner[block * size], dot};
  });
  const pairs = seen.flatMap((one, i) => [
    ...((i + 1) % grid.columns ? [[one, seen[i + 1]]] : []), [one, seen[i + grid.columns]]]);
  return pairs.filter(([one, other]) => other && one.owner !== other.owner
                                        && one.kind === 7 && other.kind === 7);
})()"""


def test_neighbours_of_other_requests_have_other_colours(web_page, tmp_path):
    """40 requests at once, more than the palette has hues; a pixel of each block is read."""
    policy = Paged(PoolSpec(1600, 64), block_size=4)
    scheduler = SeparatePrefill(policy, Recompute(), max_num_batched_tokens=2560, max_num_seqs=40)
    requests = [Request(i, i * PS // 2000, 8, 20 + 7 * i % 23) for i in range(120)]
    trace = trace_memory(requests, scheduler, OneMillisecond(), 64, pool=PoolSpec(1600, 64))
    show(web_page, tmp_path, trace)
    assert len({held.request_id for held in trace.frames[-40].held.values()}) > NUM_HUES
    pairs = []
    for place in range(0, len(trace.frames), 5):
        web_page.evaluate(f"app.show({trace.frames[place].start_ps / PS})")
        pairs += web_page.evaluate(NEIGHBOURS)
    assert len(pairs) > 100
    distances = [
        sum(abs(a - b) for a, b in zip(one["dot"], other["dot"], strict=True))
        for one, other in pairs
    ]
    assert min(distances) > 20


COMMON_COLORS = """(() => {
  const {grid, replay, data} = app, slots = paint(replay), size = data.block_size;
  const common = (canvas, x, y, width, height) => {
    const {data: bytes} = canvas.getContext("2d").getImageData(x, y, width, height), seen = {};
    for (let i = 0; i < bytes.length; i += 4) {
      const color = bytes.slice(i, i + 3).join();
      seen[color] = (seen[color] || 0) + 1;
    }
    return Object.keys(seen).sort((a, b) => seen[b] - seen[a])[0];
  };
  const scale = grid.canvas.width / grid.canvas.clientWidth;
  const block = grid.blocks.find(block => slots.owner[block * size] === SEVERAL
    && slots.kind.slice(block * size, (block + 1) * size).every(kind => kind === LIVE));
  const place = [...grid.place(block), grid.cellWidth, grid.cellHeight].map(at => at * scale);
  const entry = [...document.querySelectorAll("#legend .kind")].find(
    one => one.textContent.startsWith(KINDS[SHARED_BY_REQUESTS]));
  return [common(grid.canvas, ...place), common(entry.querySelector("canvas"), 0, 0, 30, 14)];
})()"""


def test_legend_has_the_colour_of_blocks_that_requests_share(traced, web_page):
    policy = PrefixCaching(PoolSpec(96, 64), block_size=4)
    trace = traced(policy, PoolSpec(96, 64))
    place = next(frame for frame in trace.frames if SEVERAL in slots_of(trace, frame)["owner"])
    colors = []
    for scheme in ("light", "dark"):
        web_page.emulate_media(color_scheme=scheme)
        web_page.evaluate("new Promise(requestAnimationFrame)")  # the page's event comes before it
        web_page.evaluate(f"app.show({place.start_ps / PS})")
        in_grid, in_legend = web_page.evaluate(COMMON_COLORS)
        assert in_grid == in_legend
        colors.append(in_grid)
    assert colors[0] != colors[1]
