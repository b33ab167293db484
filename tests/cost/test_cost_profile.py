"""Costs from shipped profiles: measured points are met exactly, and what was not measured."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from charged_times import apart
from refusals import refuses

import testbed.cost
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.model import Moved, Work
from testbed.cost.profile import Choices, ProfileCost, check_shard, read_profile
from testbed.cost.sections import check_profile
from testbed.cost.software import KERNELS_ALONE, SoftwareTimes

FOLDER = Path(testbed.cost.__file__).parent / "profiles"
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.json"))
H200 = GpuSpec("h200", 150_000_000_000, 4.8e12, 989e12, 55e9, 450e9, fp8_flops=1979e12)
PROFILE = read_profile("h200-opt-13b-tp1")
OPT_13B = ModelSpec(**PROFILE["model"])
ON_FOUR = read_profile("h200-opt-66b-tp4")
OPT_66B, FOUR = ModelSpec(**ON_FOUR["model"]), ServerSpec("four", H200, 4)


def cost_of(**values):
    choices, software = apart(values)
    return ProfileCost(OPT_13B, None, PROFILE, Choices(**choices), software)


@pytest.mark.parametrize(
    "path", sorted(FOLDER.rglob("*.json")), ids=lambda path: str(path.relative_to(FOLDER))
)
def test_shipped_profiles_keep_the_format(path):
    """A run reads these without the check."""
    check_profile(json.loads(path.read_text(encoding="utf-8")), path.name)


def test_a_user_s_profile_is_checked_when_it_is_read(tmp_path):
    wrong = {**PROFILE, "num_gpus": 0}
    (tmp_path / "own.json").write_text(json.dumps(wrong), encoding="utf-8")
    refuses("own.json: num_gpus", read_profile, tmp_path / "own.json")


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
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile, software=KERNELS_ALONE)
    for num_seqs, context, _, _, predicted_us in profile["fit"]["points"][::7]:
        assert cost.iteration(Work(num_seqs, context)) / 1e6 == pytest.approx(
            predicted_us, abs=0.06
        )


def test_unmeasured_choices_are_refused():
    refuses("block size 17", cost_of, block_size=17)
    refuses("kernel=.fast.: must be", cost_of, kernel="fast")
    refuses("no profile nowhere", ProfileCost, OPT_13B, None, "nowhere")
    refuses("is of opt-13b on 1 GPU", ProfileCost, OPT_13B, ServerSpec("two", H200, 2), PROFILE)


def time_of(work, server=FOUR, **choices):
    cost = ProfileCost(OPT_66B, server, ON_FOUR, Choices(**choices), KERNELS_ALONE)
    return cost.iteration(work)


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


SOFTWARE_FREE = SoftwareTimes(overhead_s=0.0, overhead_per_request_s=0.0, overhead_per_token_s=0.0)
DECODE_SECTIONS = {
    "paged": "decode_attention",
    "paper": "decode_attention_paper_kernel",
    "contiguous": "contiguous_attention",
}


class Measured:
    """A shipped profile read plainly: medians in whole picoseconds by the values of their axes."""

    def __init__(self, name):
        self.profile = read_profile(name)
        self.num_layers = self.profile["model"]["num_layers"]
        self.by_tokens = {
            section: {key[0]: ps for key, ps in self.points(section).items()}
            for section in ("linear", "cache_write", "output_head")
        }
        self.counts = set.intersection(*(set(times) for times in self.by_tokens.values()))

    def points(self, section):
        body = self.profile["sections"][section]
        width = len(body["axes"])
        return {tuple(row[:width]): round(row[width] * 10**6) for row in body["points"]}

    def without_attention(self, num_tokens, num_rows):
        """Matrix products and cache writes of every layer, and the output head once."""
        layer = self.by_tokens["linear"][num_tokens] + self.by_tokens["cache_write"][num_tokens]
        return self.num_layers * layer + self.by_tokens["output_head"][num_rows]

    def cost(self, **choices):
        """Costs of the shard by itself, without software and links."""
        model = ModelSpec(**self.profile["model"])
        return ProfileCost(model, None, self.profile, Choices(**choices), SOFTWARE_FREE)


@pytest.mark.parametrize("kernel", DECODE_SECTIONS)
@pytest.mark.parametrize("name", SHIPPED)
def test_measured_decodes_take_exactly_their_measured_time(name, kernel):
    """But for the last context of a number of sequences, where the line before it goes on."""
    measured, num_checked = Measured(name), 0
    points = measured.points(DECODE_SECTIONS[kernel])
    for block_size, spread in {key[:2] for key in points}:
        cost = measured.cost(kernel=kernel, block_size=block_size, spread=spread)
        here = {key[2:]: ps for key, ps in points.items() if key[:2] == (block_size, spread)}
        for (num_seqs, context), ps in here.items():
            last_context = max(length for n, length in here if n == num_seqs)
            if num_seqs not in measured.counts or context == last_context:
                continue
            expected = measured.without_attention(num_seqs, num_seqs) + measured.num_layers * ps
            work = Work(num_seqs, context, context, num_requests=num_seqs)
            assert cost.iteration(work) == expected, (block_size, spread, num_seqs, context)
            num_checked += 1
    assert num_checked >= 15


@pytest.mark.parametrize("name", SHIPPED)
def test_measured_prompts_take_exactly_their_measured_time(name):
    measured, num_checked = Measured(name), 0
    cost = measured.cost()
    points = {
        key[1:]: ps for key, ps in measured.points("prefill_attention").items() if key[0] == 1
    }
    longest, most_past = (max(values) for values in zip(*points, strict=True))
    for (new, past), ps in points.items():
        if new in measured.counts - {longest} and past != most_past:
            expected = measured.without_attention(new, 1) + measured.num_layers * ps
            assert cost.iteration(Work(prefill=((new, past),))) == expected, (new, past)
            num_checked += 1
    assert num_checked >= 5


@pytest.mark.parametrize("name", SHIPPED)
def test_decodes_between_measured_contexts_are_interpolated(name):
    """By whole picoseconds a token; if a time falls from one to the next, it stays level."""
    measured, num_checked = Measured(name), 0
    cost = measured.cost()
    points = measured.points("decode_attention")
    for num_seqs in sorted(measured.counts):
        contexts = sorted(key[3] for key in points if key[:3] == (16, "ragged", num_seqs))
        for low, high in pairwise(contexts):
            near, far = (points[16, "ragged", num_seqs, context] for context in (low, high))
            ps_per_token = max(0, far - near) * measured.num_layers // (high - low)
            middle = (low + high) // 2
            attention = measured.num_layers * near + ps_per_token * (middle - low)
            time_ps = cost.iteration(Work(num_seqs, middle, high))
            assert time_ps == measured.without_attention(num_seqs, num_seqs) + attention
            num_checked += 1
    assert num_checked >= 15


def test_a_shipped_profile_adds_software_and_swaps():
    """From the profile of OPT-13B on an H200: 19.278 us an iteration, and a swap of one block."""
    work = Work(8, 8 * 1024, 1024, num_requests=8)
    free = ProfileCost(OPT_13B, None, PROFILE, software=SOFTWARE_FREE).iteration(work)
    assert cost_of().iteration(work) - free == 19_278_000
    configured = cost_of(overhead_s=0.003, overhead_per_worker_s=0.001, overhead_per_request_s=7e-6)
    assert configured.iteration(work) - free == (3000 + 1000 + 8 * 7) * 10**6
    swapped = work._replace(moves=(Moved(source=DEVICE, target=HOST, length=16, num_transfers=1),))
    hidden = cost_of().iteration(swapped) - cost_of().iteration(work)
    measured = Measured("h200-opt-13b-tp1").points("swap")["fused", "out", 16, 1]
    assert hidden == measured // 40  # felt in one of 40 layers


def test_a_profile_of_another_type_of_cache_is_refused_by_its_value():
    model = replace(OPT_13B, kv_dtype_bytes=1)
    refuses(r"with model\.kv_dtype_bytes=1 \(it has null\)", check_shard, PROFILE, model, 1)
    refuses("on 1 GPU.s., the run is of opt-13b on 2$", check_shard, PROFILE, OPT_13B, 2)
