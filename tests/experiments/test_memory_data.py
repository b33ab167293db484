"""The data of memory pages, without a browser: pools, parts, requests, frames that replay the
blocks.
"""

import json
import re

import pytest
from refusals import check_refusal

import testbed as front
from testbed.core.request import Request
from testbed.experiments.look.memory_map import map_page

LENGTHS = [9, 12, 17, 9, 21, 13, 30, 9]
REQUESTS = [
    Request(i, i * 10**10, n, 2 + i % 3, prompt_ids=tuple(range(i % 3, i % 3 + n)))
    for i, n in enumerate(LENGTHS)
]
WORDS = (
    "cost=analytic",
    "policy.block_size=4",
    "scheduler=separate",
    "model.max_len=40",
    "gpu=h200",
)
TIERED = (
    "policy=tiered",
    "+tier@server.tiers.dram=dram",
    "server.tiers.dram.size_gib=0.1",
    "++server.kv_memory_gib.opt-13b=0.04",
)
WINDOWS = (
    "policy=grouped_caching",
    "model=gemma-2-27b",
    "++server.kv_memory_gib.gemma-2-27b=0.01",
)
STATES = (
    "policy=grouped",
    "policy.block_size=528",
    "model=nemotron-h-8b",
    "++server.kv_memory_gib.nemotron-h-8b=0.2",
)


def simulated(words):
    return front.simulate(*WORDS, *words, trace=REQUESTS)


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.html)[1])


@pytest.fixture(scope="module")
def tiered():
    return simulated(TIERED)


@pytest.fixture(scope="module")
def states():
    return simulated(STATES)


def replayed(frames):
    """After each frame: the blocks of every sequence, and the tokens that it stores."""
    blocks, stored = {}, {}
    for frame in frames:
        for seq, *change in frame["seqs"]:
            if not change:  # it has left
                del blocks[seq], stored[seq]
                continue
            num_stored, kept, added, *_ = change
            starts = added[::2]
            blocks[seq] = blocks.get(seq, [])[:kept] + starts
            stored[seq] = num_stored
        yield blocks, stored


def test_page_has_the_pools_of_both_tiers_and_every_request(tiered):
    data = data_of(tiered.memory_map())
    assert [name for name, _ in data["pools"]] == ["device", "dram"]
    assert data["pools"][0][1] == tiered.summary["run"]["pool_blocks"] * 4
    assert data["requests"] == {str(i): [n, 2 + i % 3, 1] for i, n in enumerate(LENGTHS)}
    assert data["end"] == pytest.approx(tiered.summary["simulated_s"])


def test_frames_are_in_order_and_their_blocks_hold_what_is_stored(tiered):
    data = data_of(tiered.memory_map())
    times = [frame["t"] for frame in data["frames"]]
    assert times == sorted(times)
    assert len(times) == data["num_states"]
    for blocks, stored in replayed(data["frames"]):
        for seq, starts in blocks.items():
            assert len(starts) * 4 >= stored[seq]
            assert len(set(starts)) == len(starts)
            assert max(starts) < data["pools"][0][1]
    assert set(blocks) == {7}  # the last one leaves with the end of the run


def test_a_copy_to_another_tier_is_in_transit_before_it_is_cached(tiered):
    """In ranges of slots: first and number."""
    frames = data_of(tiered.memory_map())["frames"]
    arrivals = [i for i, frame in enumerate(frames) if frame.get("cached1", {}).get("add")]
    departures = [i for i, frame in enumerate(frames) if frame.get("in_transit1", {}).get("add")]
    assert departures[0] < arrivals[0]
    assert frames[departures[0]]["in_transit1"]["add"] == frames[arrivals[0]]["cached1"]["add"]


def test_a_page_of_a_window_of_time_begins_with_the_whole_state(tiered):
    whole, part = data_of(tiered.memory_map()), data_of(tiered.memory_map(0.05, 0.06))
    assert (part["start"], part["end"]) == (0.05, 0.06)
    before = [frame for frame in whole["frames"] if frame["t"] <= 0.05]
    *_, (expected, _) = replayed(before)
    blocks, _ = next(iter(replayed(part["frames"])))
    assert blocks == expected
    assert {int(seq) for seq in part["requests"]} == set(expected)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(WINDOWS, ["full", "window"], id="windows"),
        pytest.param(STATES, ["full", *(f"state {i}" for i in range(1, 7))], id="states"),
    ],
)
def test_every_group_of_layers_has_a_part_and_a_table_of_each_request(words, parts):
    data = data_of(simulated(words).memory_map())
    assert [name for name, _ in data["parts"]] == parts
    owned = [owner for owner in data["owners"].values() if owner == 0]
    assert len(owned) == len(parts)


def test_page_opens_at_the_fullest_state(states):
    data = data_of(states.memory_map())
    counts = {
        frame["t"]: sum(map(len, blocks.values()))
        for frame, (blocks, _) in zip(data["frames"], replayed(data["frames"]), strict=True)
    }
    assert counts[data["fullest"]] == max(counts.values())


def test_a_page_that_would_be_too_large_has_fewer_frames(states, monkeypatch):
    every = data_of(states.memory_map())["frames"]
    monkeypatch.setattr(map_page, "MAX_CHARACTERS", 3000)
    fewer = data_of(states.memory_map())["frames"]
    assert 1 < len(fewer) < len(every)
    assert {frame["t"] for frame in fewer} <= {frame["t"] for frame in every}
    assert max(frame["step"] for frame in fewer) > max(frame["step"] for frame in every)
    monkeypatch.setattr(map_page, "MAX_CHARACTERS", 10)
    assert len(data_of(states.memory_map())["frames"]) == 1


@pytest.mark.parametrize(
    ("old", "new", "num_common"),
    [("", "ab", 0), ("ab", "abc", 2), ("abc", "ab", 2), ("abc", "abd", 2), ("abc", "xbc", 0)],
)
def test_the_beginning_that_two_tables_have_in_common_is_kept(old, new, num_common):
    assert map_page.num_common(tuple(old), tuple(new)) == num_common


def test_a_window_after_the_end_is_refused(states):
    check_refusal(("--from 5", "the run ends at"), states.memory_map, 5, None)
