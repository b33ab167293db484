"""Costs from shipped profiles: what they count, what was not measured, and the numbers that they
always gave.
"""

import csv
from functools import partial
from pathlib import Path

import pytest
from kept import GOLDEN, check_text
from refusals import refuses

import testbed.cost
from testbed.core.errors import InputError
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec, TierSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import Moved, Work, read_work
from testbed.cost.profile import Choices, ProfileCost, read_profile

FOLDER = Path(testbed.cost.__file__).parent / "profiles"
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.json"))
H200 = GpuSpec("h200", 150_000_000_000, 4.8e12, 989e12, 55e9, 450e9)
PROFILE = read_profile("h200-opt-13b-tp1")
OPT_13B = ModelSpec(**PROFILE["model"])
ON_FOUR = read_profile("h200-opt-66b-tp4")
OPT_66B, FOUR = ModelSpec(**ON_FOUR["model"]), ServerSpec("four", H200, 4)


def cost_of(**choices):
    return ProfileCost(OPT_13B, None, PROFILE, Choices(**choices))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_record_source_and_fit_error(name):
    profile = read_profile(name)
    assert profile["fingerprint"]["source"] == "measured"
    assert profile["fingerprint"]["device"] == "NVIDIA H200"
    assert profile["fit"]["median_error"] < 0.03
    assert profile["fit"]["p95_error"] < 0.08
    assert profile["fit"]["num_batches"] == 200


@pytest.mark.parametrize("name", SHIPPED)
def test_recorded_fit_equals_the_loaded_prediction(name):
    profile = read_profile(name)
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile, Choices(overhead_s=0.0))
    for num_seqs, context, _, _, predicted_us in profile["fit"]["points"][::7]:
        assert cost.iteration(Work(num_seqs, context)) / 1e6 == pytest.approx(
            predicted_us, abs=0.06
        )


def test_unmeasured_choices_are_refused():
    refuses("block size 17", cost_of, block_size=17)
    refuses("kernel: fast", cost_of, kernel="fast")
    refuses("no profile nowhere", ProfileCost, OPT_13B, None, "nowhere")
    refuses("is of opt-13b on 1 GPU", ProfileCost, OPT_13B, ServerSpec("two", H200, 2), PROFILE)


def time_of(work, server=FOUR, **choices):
    return ProfileCost(OPT_66B, server, ON_FOUR, Choices(overhead_s=0.0, **choices)).iteration(work)


def added_us(work, **choices):
    return (time_of(work, **choices) - time_of(work)) / 1e6


def test_parallel_layer_time_is_added_for_several_gpus():
    configured = {2: 1e-6, 4: 5e-6}
    for work in (Work(8, 800, 100), Work(prefill=((900, 0),))):
        assert added_us(work, parallel_layer_s=configured) == OPT_66B.num_layers * 5
        shard = time_of(work, server=None)
        assert time_of(work, server=None, parallel_layer_s=configured) == shard
    assert added_us(Work(), parallel_layer_s=configured) == 0
    refuses(
        r"has no cost for 4 GPUs \(it has 2, 8; add one\)",
        time_of,
        Work(),
        parallel_layer_s={2: 1e-6, 8: 1e-6},
    )


KEPT = GOLDEN / "profile_times.csv"
OUT, IN = Moved(DEVICE, HOST, 16, 40), Moved(HOST, DEVICE, 16, 7)
WORKS = [
    Work(1, 17, 17),
    Work(7, 3011, 900),
    Work(100, 51_234, 2010, 700, (), 103),
    Work(300, 99_999, 1200),
    Work(0, 0, 0, 0, ((512, 0),), 1),
    Work(64, 30_001, 1900, 0, ((300, 700), (41, 0)), 70),
    Work(32, 9000, 800, 0, (), 32, ((16, 3), (5, 1)), (OUT, IN)),
]
CHOICES = {
    "plain": Choices(),
    "paper": Choices(kernel="paper", block_size=32, swap="per block", repeated_read=0.28),
    "told": Choices(
        overhead_s=0.003,
        overhead_per_worker_s=0.001,
        overhead_per_request_s=7e-6,
        attention_scale=1.3,
    ),
    "contiguous": Choices(kernel="contiguous", repeated_read=1.0),
}


def golden_rows(name):
    """(profile, choices, work, cost in picoseconds, growth of a decode step) for every case of a
    shipped profile.
    """
    profile = read_profile(name)
    for kind, choices in CHOICES.items():
        cost = ProfileCost(ModelSpec(**profile["model"]), None, profile, choices)
        for i, work in enumerate(WORKS):
            plain = not (work.prefill or work.copies)
            growth = cost.decode(work).growth_ps if plain else 0
            yield [name, kind, str(i), str(cost.iteration(work)), str(growth)]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_keep_their_golden_times(name):
    kept = [row for row in csv.reader(KEPT.open()) if row[0] == name]
    assert kept
    assert list(golden_rows(name)) == kept


TIERS = {"dram": TierSpec(1), "nvme": TierSpec(1, 3e9, 1e9, 1e-4, 1e-5)}
MADE_UP = [
    "groups",
    "plain",
    "linked",
]  # KV groups and experts; mixed batches and unequal lengths; measured transfers
EXTRA = {"pages": 3e-6, "maps": 2e-5}
SHARES = Efficiencies(
    all_reduce_s=5e-6,
    copy_s=2e-6,
    overhead_s=1e-3,
    overhead_per_request_s=2e-5,
    overhead_per_token_s=3e-6,
    overhead_per_sequence_s=4e-6,
    repeated_read=0.3,
    byte_kv_bandwidth=0.7,
    byte_window_bandwidth=0.6,
    extra_s=EXTRA,
)
MORE_CHOICES = CHOICES | {
    "skewed": Choices(extra_s=EXTRA, experts="power_law_1.2"),
    "equal": Choices(extra_s=EXTRA, swap_waits="all in", spread="equal"),
    "other": Choices(
        overhead_s=0.001,
        overhead_per_token_s=3e-6,
        overhead_per_input_s=5e-6,
        overhead_per_sequence_s=4e-6,
        sequences_per_fork=2.0,
        software="other",
        parallel_layer_s={4: 9e-6},
        cuda_graph_sizes=[2, 40],
    ),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_made_up_profiles_give_the_times_that_are_kept(name, request):
    """Whatever an iteration can be: its time, a span of its decodes, and its moves by themselves;
    and by a roofline.
    """
    profile, lines = read_profile(GOLDEN / "costs" / f"{name}.json"), []
    model, gpu = ModelSpec(**profile["model"]), GpuSpec(**profile["gpu"])
    server = ServerSpec("server", gpu, profile["num_gpus"], tiers=TIERS)
    works = [read_work(row) for row in csv.DictReader((GOLDEN / "costs" / "works.csv").open())]
    makes = {
        chosen: partial(ProfileCost, model, server, profile, one)
        for chosen, one in MORE_CHOICES.items()
    }
    makes |= {
        "shard": partial(ProfileCost, model, None, profile),
        "roofline": partial(AnalyticCost, model, server, SHARES),
    }
    for chosen, make in makes.items():
        try:
            cost = make()
        except InputError as error:
            lines.append(f"{chosen}: {error}")
            continue
        origin = getattr(cost, "fingerprint", None)
        lines.append(f"{chosen}, software of {cost.software}, windows of {cost.windows}: {origin}")
        for work in works:
            decodes = work if work.decode_seqs else None
            for ask, of in (
                (cost.iteration, work),
                (cost.decode, decodes),
                (cost.transfer, work.moves),
            ):
                try:
                    lines += [f"  {ask.__name__}: {ask(of)}"] if of else []
                except InputError as error:
                    lines.append(f"  {ask.__name__}: {error}")
    check_text("\n".join([*lines, ""]), request)
