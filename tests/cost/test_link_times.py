"""Times of transfers by extents; costs of windows, states and experts by their sections, each rule
by hand.
"""

import json
import random
from dataclasses import asdict, replace

import numpy as np
import pytest
from refusals import refuses

from testbed.core.errors import InputError
from testbed.core.layers import Experts, States, Window
from testbed.core.request import PS
from testbed.core.shapes import read_model
from testbed.core.slots import DEVICE, HOST, Copy, Move
from testbed.core.specs import ServerSpec, TierSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.kv_groups import WindowTable
from testbed.cost.link_times import (
    COPIES,
    GATHER,
    HARDWARE,
    INTO,
    KERNEL,
    OUT,
    LinkTimes,
    MeasuredLink,
    measured_link,
    read_transfers,
)
from testbed.cost.model import UNBOUNDED, Moved, WindowReads, Work, counted
from testbed.cost.profile import Choices, ProfileCost
from testbed.cost.sections import rows
from testbed.experiments.real.importers.known_shapes import gpu_named

H200 = gpu_named("h200")
OPT = read_model("opt-13b")
POINTS = rows(read_transfers(H200), "transfers")
SLOW = replace(H200, transfers=None)


def server(gpu=H200, **tiers):
    return ServerSpec("s", gpu, 1, tiers=tiers)


def test_times_interpolate_linearly_through_measured_points():
    times = LinkTimes(
        [(("gather", "in", n, size, 16), n * (10 + size)) for n in (1, 10, 100) for size in (8, 80)]
    )
    for count, size in ((1, 8), (10, 80), (4, 44), (55, 8), (1000, 80), (10, 800)):
        assert times("gather", "in", count, count * size, 16) == count * (10 + size)
    assert (
        times("gather", "in", 10, 40, 16) == 10 * 18
    )  # below the smallest extent its time is used
    assert times("gather", "in", 2, 88, 99) == 2 * 54  # one block size: no line to continue
    refuses("transfers out by copies: were not measured", times, "copies", "out", 1, 8, 0)


def held_back(points, every=5):
    """Way, method and relative error of every fifth point, predicted from the other points."""
    times = LinkTimes([point for place, point in enumerate(points) if place % every])
    return [
        (way, method, times(method, way, count, count * size, block) / ps - 1)
        for (method, way, count, size, block), ps in points[::every]
    ]


@pytest.mark.parametrize("start", range(5))
def test_held_back_points_are_predicted(start):
    """Every fifth point, not used in the fit: within 10% in the median, each way and of all."""
    errors = held_back(POINTS[start:])
    for way in ("out", "in", "peer"):
        of_way = [abs(error) for found, _, error in errors if found == way]
        assert len(of_way) >= 50
        assert np.median(of_way) < 0.1
    assert np.median([abs(error) for *_, error in errors]) < 0.05


def test_swaps_beside_a_roofline_take_the_measured_times_of_the_link():
    """Out and back in, in one iteration, with nothing to hide behind."""
    out = counted((Move(DEVICE, HOST, (Copy(0, 0, 16), Copy(64, 16, 32))),))
    back = counted((Move(HOST, DEVICE, (Copy(96, 48, 16),)),))
    link, cost = measured_link(OPT, server()), AnalyticCost(OPT, server(), Efficiencies())
    times_ps = link.copied(OUT, out), link.copied(INTO, back)
    assert [cost.moving_behind(0, moves) for moves in (out, back)] == list(times_ps)
    assert cost.moving_behind(0, (*out, *back)) == sum(times_ps)


def test_each_direction_has_enough_points():
    for way in ("out", "in", "peer"):
        assert sum(key[1] == way for key, _ in POINTS) >= 60
    for (method, way, count, size, _), ps in POINTS:  # no transfer is faster than its wires
        rate = count * size / (ps / PS)
        assert rate < (H200.link_bandwidth if way == "peer" else 64e9), (method, way, count, size)


def test_fragmented_transfers_take_their_measured_times():
    """One extent of 64 MiB against 4,096 of 16 KiB: ten times and more, by copies and by a
    kernel.
    """
    times, size = LinkTimes(POINTS), 1 << 26
    for method, block in ((COPIES, 0), (GATHER, 1 << 14)):
        for way in (OUT, INTO):
            assert times(method, way, 4096, size, block) > 8 * times(method, way, 1, size, block)


def test_extents_are_counted_on_the_lower_tier():
    out = Move(
        DEVICE, HOST, (Copy(0, 64, 16), Copy(160, 80, 16), Copy(32, 96, 5), Copy(48, 32, 16))
    )
    assert counted([out]) == (
        Moved(source=DEVICE, target=HOST, length=5, num_transfers=1, num_runs=0),
        Moved(source=DEVICE, target=HOST, length=16, num_transfers=3, num_runs=2),
    )
    back = Move(HOST, DEVICE, (Copy(64, 0, 16), Copy(96, 16, 16)))
    assert counted([back, back]) == (
        Moved(source=HOST, target=DEVICE, length=16, num_transfers=4, num_runs=4),
    )
    assert sum(move.extents for move in counted([out])) == 2
    of_no_counted_runs = Moved(source=DEVICE, target=HOST, length=16, num_transfers=3)
    assert of_no_counted_runs.extents == 3


def test_a_fragmented_host_makes_a_swap_dearer():
    qwen = read_model("qwen2.5-0.5b")  # a block of 16 has 4 KiB of K in a layer, 192 KiB in all
    link = measured_link(qwen, server())
    whole, parts = (
        Moved(source=DEVICE, target=HOST, length=16, num_transfers=64, num_runs=runs)
        for runs in (1, 64)
    )
    assert link.moved(OUT, [whole]) < link.moved(OUT, [parts]) < link.copied(OUT, [whole])
    assert link.moved(OUT, []) == link.copied(OUT, []) == 0
    assert link.moved(OUT, [parts]) == link.times(
        GATHER, OUT, 64, 1024 * qwen.kv_bytes_per_token, 4096
    )
    expected_ps = link.times(COPIES, OUT, 64 * 48, 1024 * qwen.kv_bytes_per_token, 0)
    assert link.copied(OUT, [parts]) == link.copied(OUT, [whole]) == expected_ps


def test_a_link_whose_kernel_was_measured_moves_blocks_by_it():
    """Its time depends on the planes of blocks, not on how they lie in the host's memory."""
    qwen = read_model("qwen2.5-0.5b")
    rows = [((method, OUT, n, 4096, 0), n * 1000) for method in (KERNEL, COPIES) for n in (1, 4096)]
    link = MeasuredLink(qwen, 1, LinkTimes(rows))
    whole, parts = (
        Moved(source=DEVICE, target=HOST, length=16, num_transfers=64, num_runs=runs)
        for runs in (1, 64)
    )
    assert link.moved(OUT, [whole]) == link.moved(OUT, [parts]) == 64 * 48 * 1000


@pytest.mark.parametrize("swap", ["fused", "per block"])
def test_swaps_take_the_measured_time(swap):
    cost = ProfileCost(OPT, server(), "h200-opt-13b-tp1", Choices(swap=swap))
    moves = (
        Moved(source=DEVICE, target=HOST, length=16, num_transfers=40, num_runs=3),
        Moved(source=HOST, target=DEVICE, length=16, num_transfers=10, num_runs=10),
    )
    by = {"fused": cost.link.moved, "per block": cost.link.copied}[swap]
    expected = by(OUT, moves[:1]) + by(INTO, moves[1:])
    assert cost.iteration(Work(moves=moves)) == expected
    assert "measured by extents (h200)" in cost.fingerprint["transfers"]
    plain = ProfileCost(OPT, server(SLOW), "h200-opt-13b-tp1", Choices(swap=swap))
    assert plain.link is None
    assert "transfers" not in plain.fingerprint
    other = tuple(move._replace(num_runs=None) for move in moves)
    assert plain.iteration(Work(moves=moves)) == plain.iteration(Work(moves=other))


def test_tiers_over_the_gpu_s_link_take_the_measured_time():
    dram, nvme = TierSpec(1, latency_s=1e-5, extent_s=1e-6), TierSpec(1, 6.8e9, 4e9)
    moves = (
        Moved(source=DEVICE, target="dram", length=16, num_transfers=40, num_runs=3),
        Moved(source=DEVICE, target="dram", length=5, num_transfers=2, num_runs=0),
    )
    cost = ProfileCost(OPT, server(dram=dram, nvme=nvme), "h200-opt-13b-tp1")
    assert cost.transfer(moves) == cost.link.moved(OUT, moves) + 13 * PS // 10**6
    away = (Moved(source="nvme", target=DEVICE, length=16, num_transfers=40, num_runs=3),)
    bytes_s = 640 * OPT.kv_bytes_per_token / 6.8e9
    assert cost.transfer(away) == pytest.approx(bytes_s * PS)
    plain = ProfileCost(OPT, server(SLOW, dram=dram), "h200-opt-13b-tp1")
    assert plain.transfer(moves) == pytest.approx(
        (650 * OPT.kv_bytes_per_token / 55e9 + 52e-6) * PS
    )
    assert "without what calls and extents cost" in plain.fingerprint["transfers"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.update(format=2), "format 2, this version reads 1"),
        (lambda d: d.pop("sections"), "not a file of `testbed gpu measure transfers`"),
        (
            lambda d: d["fingerprint"].update(device="NVIDIA L4"),
            "measured on NVIDIA L4, the server has h200",
        ),
        (
            lambda d: d["sections"]["transfers"].update(points=[["copies", "out", 1, 2, 0, -1.0]]),
            "is not a number",
        ),
        (
            lambda d: d["sections"]["transfers"].update(axes=["way"]),
            "axes are way; must be method, way",
        ),
    ],
)
def test_file_of_another_kind_is_refused(tmp_path, change, problem):
    values = json.loads((HARDWARE / "h200.json").read_text())
    change(values)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(values))
    refuses(problem, read_transfers, replace(H200, transfers=str(path)))


def test_a_changed_file_of_the_user_is_read_anew(tmp_path):
    path = tmp_path / "mine.json"
    values = json.loads((HARDWARE / "h200.json").read_text())
    moves = counted((Move(DEVICE, HOST, (Copy(0, 0, 16),)),))
    mine, times_ps = server(replace(H200, transfers=str(path))), []
    for factor in (1, 2):
        points = [[*key, factor * ps / 1e6] for key, ps in POINTS]  # the file has microseconds
        values["sections"]["transfers"]["points"] = points
        path.write_text(json.dumps(values))
        times_ps.append(measured_link(OPT, mine).copied(OUT, moves))
    shipped_ps = measured_link(OPT, server()).copied(OUT, moves)
    assert times_ps == pytest.approx([shipped_ps, 2 * shipped_ps])


PLAIN = replace(read_model("llama-3-8b"), name="small", num_layers=4)
MODEL = replace(
    PLAIN, window=Window(64, 2), states=States(1, 1000, 500), experts=Experts(8, 2, 128)
)
SIZES = (1, 2, 4, 16, 64, 128, 512)


def section(axes, points):
    return {"covers": "", "axes": axes, "columns": ["us"], "note": "", "points": points}


def decodes(us):
    return section(
        ["num_seqs", "total_context"],
        [[n, n * mean, us(n, mean)] for n in (1, 8, 32) for mean in SIZES],
    )


def profile(**more):
    prompts = section(
        ["num_seqs", "new_tokens", "past_tokens"],
        [[n, new, 0, 2.0 + n * new / 50] for n in (1, 2, 8, 32) for new in (1, 64, 4096)],
    )
    flat = section(["num_tokens"], [[1, 10.0], [4096, 500.0]])
    return {
        "format": 1,
        "fingerprint": {"source": "test"},
        "model": asdict(MODEL),
        "num_gpus": 1,
        "gpu": None,
        "sections": {
            "linear": flat,
            "cache_write": flat,
            "output_head": {**flat, "axes": ["num_rows"]},
            "decode_attention": decodes(lambda n, mean: 5 + n * mean / 70),
            "prefill_attention": prompts,
            "window_prefill_attention": prompts,
            "state_prefill": prompts,
            "window_decode_attention": decodes(
                lambda n, mean: 6 + n * min(mean, 64) / 60 + 3 * n * (mean > 64)
            ),
            "state_decode": section(["num_seqs"], [[1, 3.0], [32, 40.0]]),
            "experts": section(
                ["distribution", "num_tokens"],
                [
                    ["balanced", 1, 4.0],
                    ["balanced", 4096, 90.0],
                    ["skewed", 1, 4.0],
                    ["skewed", 4096, 180.0],
                ],
            ),
        },
        **more,
    }


def work(lens):
    reads = WindowReads(
        64,
        sum(min(n, 64) for n in lens),
        sum(n < 64 for n in lens),
        min((64 - n for n in lens if n < 64), default=UNBOUNDED),
    )
    return Work(len(lens), sum(lens), max(lens), num_requests=len(lens), windows=(reads,))


def test_decode_steps_equal_iterations():
    cost, rng = ProfileCost(MODEL, None, profile()), random.Random(3)
    for _ in range(300):
        lens = [round(2 ** rng.uniform(0, 9)) for _ in range(rng.randint(1, 40))]
        decode = cost.decode(work(lens))
        for k in range(min(decode.steps, 30)):
            assert (
                cost.iteration(work([n + k for n in lens]))
                == decode.first_ps + k * decode.growth_ps
            )


def test_a_window_charges_long_and_short_sequences_their_shares():
    points = [
        ((n, n * mean), 10 * n * min(mean, 64) + 7 * n * (mean > 64))
        for n in (1, 8)
        for mean in SIZES
    ]
    table = WindowTable(points, 64, 1)
    assert table.span(work([500] * 8)).first_ps == 8 * 647  # beyond the window, whatever the length
    assert table.span(work([16] * 8)) == (8 * 160, 80, 48)
    assert table.span(work([500] * 4 + [16] * 4)) == (4 * 647 + 4 * 160, 40, 48)
    within = WindowTable([point for point in points if point[0][1] <= 64 * point[0][0]], 64, 1)
    assert within.span(work([500] * 8)).first_ps == 8 * 640
    refuses("windows of 64", table.span, Work(1, 5, 5))


def test_experts_take_the_distribution_that_is_chosen():
    balanced = ProfileCost(MODEL, None, profile()).iteration(Work(prefill=((4096, 0),)))
    skewed = ProfileCost(MODEL, None, profile(), Choices(experts="skewed")).iteration(
        Work(prefill=((4096, 0),))
    )
    assert skewed - balanced == pytest.approx(4 * 90 * 10**6, rel=1e-4)
    with pytest.raises(InputError, match=r"experts=other: "):
        ProfileCost(MODEL, None, profile(), Choices(experts="other"))
    with pytest.raises(InputError, match="llama-3-8b has no experts"):
        ProfileCost(
            read_model("llama-3-8b"), None, "h200-llama-3-8b-tp1", Choices(experts="skewed")
        )
