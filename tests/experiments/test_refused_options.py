"""Wrong options of `testbed run`: exit code 2, one line that names the key, the value and the way
out, no traceback, and nothing half-written.
"""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from refusals import check_words

from testbed.core.errors import InputError
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.error_lines import one_line
from testbed.run.build import build

PROFILE = "cost=profile cost.path=h200-opt-13b-tp1"

WORDS = [
    pytest.param(
        "scheduler=vllm_v1 speculation=draft_model speculation.drafter=3",
        ("speculation: drafter=3: is no model", "testbed list model"),
        id="a drafter that is a number",
    ),
    pytest.param(
        "+system=vllm-v1 release=[]",
        ("release=[]", "0.33"),
        id="no release",
    ),
    pytest.param("foo", ("foo",), id="an override without an equals sign"),
    pytest.param(
        "hydra.mode=MULTIRUN seed=0,1",
        (
            "hydra.mode=MULTIRUN:",
            "not read",
            "-m",
        ),
        id="a sweep by Hydra's key",
    ),
    pytest.param("--config-dir", ("--config-dir: has no value",), id="an option without its value"),
    pytest.param(
        "--config-dir=mine model=odd server=h200", ("while parsing",), id="a model that is no YAML"
    ),
    pytest.param(
        "policy=prefix_caching eviction=arc",
        ("eviction=arc: ", "by eviction@policy.eviction=arc"),
        id="a group in the wrong place",
    ),
    pytest.param("+eviction=arc", ("by eviction@policy.eviction=arc",), id="with a plus there"),
    pytest.param("system=vllm-v1", ("by +system=vllm-v1",), id="a system without its plus"),
    pytest.param(
        "eviction@policy.eviction=arc",
        (
            "the chosen policy has no eviction",
            "leave eviction@policy.eviction=... out",
        ),
        id="an eviction order of a policy that caches nothing",
    ),
    pytest.param(
        "outputs=nothing",
        (
            "outputs",
            "'nothing'",
        ),
        id="outputs that are unknown",
    ),
    pytest.param(
        "-m arrivals.rate=0 outputs=summary hydra/launcher=joblib",
        (
            "arrivals.rate",
            "0",
        ),
        id="a wrong point of a sweep, from a worker",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        "-m seed=0,1 arrivals.rat=2",
        (
            "arrivals.rat:",
            "did you mean arrivals.rate",
        ),
        id="a key that is mistyped in a sweep",
    ),
    pytest.param(
        "-m arrivals.rate=glob(1*)",
        ("arrivals.rate=glob(1*)", "with commas"),
        id="a pattern of no option",
    ),
    pytest.param(
        "-m arrivals.rate=interval(1,2)",
        ("interval(1,2)", "with commas"),
        id="a sweep over a range",
    ),
    pytest.param("~polic", ("did you mean policy?",), id="a key that is taken away and mistyped"),
    pytest.param(
        "+arrivals.rat=2",
        (
            "did you mean rate?",
            "~arrivals.rat",
        ),
        id="a key that is added and mistyped",
    ),
]


@pytest.mark.parametrize(("line", "words"), WORDS)
def test_unknown_words_are_refused(refused, line, words):
    check_words(words, refused(f"run {line}"))


REQUESTS = [
    pytest.param(
        "trace=csv trace.path=lengths.csv trace.prompt_ids_column=typo",
        ("no column 'typo'",),
        id="a content column that is not there",
    ),
    pytest.param(
        "arrivals.rate=1e9 arrivals.duration_s=1e5",
        ("lower arrivals.rate or arrivals.duration_s",),
        id="more requests than memory holds",
    ),
    pytest.param(
        "arrivals.rate=1e300",
        ("e+303 are expected", "lower arrivals.rate or arrivals.duration_s"),
        id="more requests than an array may have",
    ),
    pytest.param(
        "arrivals=slotted arrivals.rate=1e300",
        ("e+303 are expected", "lower arrivals.rate or arrivals.duration_s"),
        id="more requests in slots than an array may have",
    ),
    pytest.param(
        "arrivals=slotted arrivals.slot_s=1e-9",
        ("arrivals.slot_s",),
        id="more slots than 64 bits number",
    ),
    pytest.param(
        "trace=csv trace.path=late.csv arrivals=replay",
        ("1e+07 s",),
        id="a time stamp that 64 bits do not hold",
    ),
    pytest.param(
        "trace=csv trace.path=timed.csv arrivals=replay arrivals.speedup=1e-6",
        ("arrivals.speedup",),
        id="time stamps made late by slow motion",
    ),
    pytest.param(
        "workload.mix=1:1,beam1:1",
        (
            "'beam1:1'",
            "no share",
            "of 2 or more",
        ),
        id="a share of beams of one sequence",
    ),
    pytest.param(
        "beams=recorded workload.beam=true workload.num_seqs=2",
        ("beams.path: has no value",),
        id="beams without their record",
    ),
    pytest.param(
        "workload.beam=true",
        (
            "a beam of one sequence",
            "workload.num_seqs=2 or more",
        ),
        id="a beam of one sequence",
    ),
    pytest.param(
        "beams=recorded beams.path=nowhere.csv workload.beam=true workload.num_seqs=2",
        ("nowhere.csv: No such file",),
        id="a record of beams that is not there",
    ),
    pytest.param(
        "beams=recorded beams.path=searches.csv",
        (
            "no request uses beam search",
            "give workload.beam=true",
        ),
        id="a record of beams for requests without any",
    ),
    pytest.param("arrivals=replay", ("arrivals=replay",), id="a replay without time stamps"),
    pytest.param(
        "trace=csv trace.path=lengths.csv arrivals=sessions",
        ("trace=agent_sessions",),
        id="sessions of a file of lengths",
    ),
    pytest.param(
        "trace.model=nope",
        (
            "model='nope':",
            "not a model",
        ),
        id="a length model that is none",
    ),
]


@pytest.mark.parametrize(("line", "words"), REQUESTS)
def test_requests_that_cannot_be_made_are_refused(refused, line, words):
    check_words(words, refused(f"run {line}"))


TOO_SMALL = [
    pytest.param(
        "model=opt-175b server=a100-40gb-x1", ("opt-175b",), id="a model larger than its server"
    ),
    pytest.param(
        "'server.kv_memory_gib={opt-13b: 500}'",
        (
            "server.kv_memory_gib.opt-13b",
            "500 GiB",
            "1 a100-40gb",
        ),
        id="a pool larger than its GPU",
    ),
    pytest.param(
        "~server.kv_memory_gib server.num_blocks=999999",
        (
            "server.num_blocks",
            "1 a100-40gb",
        ),
        id="more blocks than a GPU holds",
    ),
]

SERVERS = [
    pytest.param(
        "preemption=swap swap_space_gib=0",
        (
            "swap_space_gib=0 leaves no slots",
            "preemption=recompute",
        ),
        id="swapping without swap space",
    ),
    pytest.param(
        "policy=grouped preemption=swap",
        (
            "preemption=swap: Grouped moves no sequences",
            "preemption=recompute",
        ),
        id="swapping by a policy without a host tier",
    ),
    pytest.param(
        "model=gemma-2-27b policy=grouped ~server.kv_memory_gib server.num_blocks=900",
        (
            "server.num_blocks=900",
            "gemma-2-27b's groups",
            "give server.kv_memory_gib",
        ),
        id="blocks of layers that share no block",
    ),
    pytest.param(
        "policy=paged +tier@server.tiers.dram=dram",
        (
            "server.tiers: Paged uses no tier",
            "policy=tiered",
            "dram out",
        ),
        id="a tier that the policy does not use",
    ),
    pytest.param(
        "~server.kv_memory_gib server.num_blocks=9 server.workspace_gib=2",
        (
            "server.workspace_gib",
            "2",
        ),
        id="a workspace with blocks that are given",
    ),
    pytest.param(
        "model=llama-3-8b model.num_kv_heads=3",
        ("num_kv_heads",),
        id="heads that do not share K and V",
    ),
    pytest.param(
        "gpu@server.gpu=h200",
        (
            "1 a100-40gb",
            "1 h200",
            "~server.kv_memory_gib",
            "server.kv_memory_of.gpu=h200",
        ),
        id="the pool of another GPU",
    ),
]


@pytest.mark.parametrize(
    "value",
    [
        "scheduler.max_num_seqs=0",
        "scheduler.max_num_batched_tokens=-1",
        "server.memory_utilization=7",
        "server.num_gpus=0",
        "server.kv_memory_gib=3",
    ],
)
def test_a_value_of_which_vllm_s_rules_make_others_is_refused_by_its_own_name(refused, value):
    server = "run +system=vllm-v1 model=llama-3.1-8b gpu=h100-80gb"
    assert f"error: {value}: must be" in refused(f"{server} {value}")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("model=llama-3.1-8b gpu=l4", "model.max_len 33136"),
        ("model=llama-3-70b gpu=h100-80gb", "raise server.memory_utilization or server.num_gpus"),
        ("model=llama-3.1-8b gpu=h100-80gb server.num_gpus=3", "server.num_gpus=3"),
    ],
)
def test_a_preset_that_would_not_start_is_refused_in_its_own_words(refused, words, key):
    message = refused(f"run +system=vllm-v1 {words}", expected=1)
    check_words(("vLLM does not start", key), message)
    assert "--" not in message.partition("error: ")[2]


@pytest.mark.parametrize(("line", "words"), TOO_SMALL)
def test_what_does_not_fit_a_server_is_an_answer(refused, line, words):
    check_words(words, refused(f"run {line}", expected=1))


@pytest.mark.parametrize(("line", "words"), SERVERS)
def test_memory_that_a_server_lacks_is_refused(refused, line, words):
    check_words(words, refused(f"run {line}"))


COSTS = [
    pytest.param(
        "cost.iterations=vllm-0.20",
        ("cost.iterations=vllm-0.20: nothing reads it", "vllm_v1_async"),
        id="whole iterations of another scheduler",
    ),
    pytest.param(
        "cost.choices.attention_scale=1e20 arrivals.duration_s=3",
        ("64 bits count picoseconds", "check costs"),
        id="iterations that never end",
    ),
    pytest.param(
        "cost.roofline.linear_flops=0.5",
        (
            "linear_flops=0.5: nothing reads it",
            "cost.efficiencies.linear_flops=0.5",
        ),
        id="an efficiency with a profile",
    ),
    pytest.param(
        "cost.path=h200-opt-13b-tp1 model=mixtral-8x7b server=h200 server.num_gpus=2",
        (
            "cost.path=h200-opt-13b-tp1",
            "mixtral-8x7b's shape and types on 2 GPU(s)",
        ),
        id="a profile of another model",
    ),
    pytest.param(
        "cost.choices.experts=skewed model=mixtral-8x7b server=h200 server.num_gpus=2",
        (
            "experts=skewed",
            "cost.path",
        ),
        id="skewed experts of a roofline",
    ),
    pytest.param(
        f"server=h200 {PROFILE} cost.choices.swap=foo",
        (
            "swap: foo",
            "not one of fused",
        ),
        id="swaps that were not measured",
    ),
    pytest.param(
        f"server=h200 {PROFILE} cost.choices.cuda_graph_sizes=[0]",
        ("cuda_graph_sizes.0=0: must be above 0",),
        id="graphs of no requests",
    ),
    pytest.param(
        "cost=profile cost.path=h200-opt-13b-tp1",
        (
            "NVIDIA H200",
            "a100-40gb (NVIDIA A100-SXM4-40GB)",
            "cost=auto",
        ),
        id="costs of another GPU",
    ),
    pytest.param(
        "cost=sosp23 gpu@cost.source=h100-80gb cost.path=h200-opt-13b-tp1",
        (
            "NVIDIA H200",
            "cost.source",
            "h100-80gb",
        ),
        id="costs carried from another GPU than theirs",
    ),
    pytest.param(
        "cost=profile cost.path=lengths.csv",
        ("lengths.csv: not a profile",),
        id="a profile that is no JSON",
    ),
]


@pytest.mark.parametrize(("line", "words"), COSTS)
def test_costs_that_do_not_belong_to_the_run_are_refused(refused, line, words):
    check_words(words, refused(f"run {line}"))


VALUES = [
    pytest.param(
        "arrivals.rate=0",
        (
            "arrivals.rate",
            "0",
        ),
        id="a rate of zero",
    ),
    pytest.param(
        "arrivals.rate=1e400",
        (
            "arrivals.rate",
            "inf",
        ),
        id="a rate of more than a float holds",
    ),
    pytest.param(
        "arrivals.duration_s=1e8 arrivals.rate=1e-7",
        ("arrivals.duration_s",),
        id="a duration that 64 bits of picoseconds do not hold",
    ),
    pytest.param("policy.block_size=300", ("block_size=300: must be",), id="a block too large"),
    pytest.param(
        "policy.block_size=1.5",
        (
            "policy.block_size",
            "1.5",
        ),
        id="a fraction of a token",
    ),
    pytest.param(
        "window_s=3",
        (
            "window_s",
            "3",
        ),
        id="a number for a window",
    ),
    pytest.param(
        "window_s=[5,1]",
        (
            "window_s",
            "[5, 1]",
        ),
        id="a window that ends before it begins",
    ),
    pytest.param(
        "workload.beam=maybe",
        (
            "beam",
            "'maybe'",
        ),
        id="a word for a switch",
    ),
    pytest.param(
        "server.num_gpus=0.5",
        (
            "num_gpus",
            "0.5",
        ),
        id="half a GPU",
    ),
    pytest.param("server.kv_memory_gib=3", ("server.kv_memory_gib",), id="one pool for all models"),
    pytest.param(
        "server.num_blocks=900",
        (
            "server.num_blocks",
            "900",
            "983 blocks",
            "~server.kv_memory_gib",
        ),
        id="a pool given twice",
    ),
    pytest.param(
        "server.memory_utilization=0.5",
        (
            "server.memory_utilization",
            "0.5",
            "~server.kv_memory_gib",
        ),
        id="a share of memory with a pool that is given",
    ),
    pytest.param(
        "model.num_layers=80",
        (
            "model.num_layers",
            "80",
            "opt-13b has 40",
            "model.name",
        ),
        id="another shape under the name of a model that ships",
    ),
    pytest.param(
        "cost.roofline.linear_flops=72",
        (
            "linear_flops",
            "72",
            "exceeds the maximum of 1",
        ),
        id="more than all of the peak",
    ),
    pytest.param(
        "cost.roofline.attention_bandwidth=56.9",
        (
            "attention_bandwidth",
            "56.9",
        ),
        id="more than all of the bandwidth",
    ),
    pytest.param(
        "server.gpu.memory_bandwidth=1555",
        (
            "server.gpu.memory_bandwidth",
            "1555",
            "bytes/s",
        ),
        id="a bandwidth in GB/s",
    ),
    pytest.param(
        "swap_space_gib=1e300",
        (
            "swap_space_gib",
            "1e+300",
            "GiB",
        ),
        id="memory without end",
    ),
    pytest.param(
        "window_s=[1e300,1e301]",
        (
            "window_s",
            "1e+300",
            "9,000,000 s",
        ),
        id="a window beyond time",
    ),
    pytest.param(
        "cost.roofline.linear_flops=0",
        (
            "linear_flops",
            "0",
        ),
        id="products that reach nothing of the peak",
    ),
    pytest.param(
        "cost.roofline.layer_s=1e9",
        (
            "layer_s",
            "1000000000.0",
            "9,000,000 s",
        ),
        id="software time beyond time",
    ),
    pytest.param(
        "server.num_gpus=2",
        (
            "opt-13b",
            "2 a100-40gb",
            "server.kv_memory_of.num_gpus=2",
        ),
        id="the pool of fewer GPUs",
    ),
    pytest.param(
        "scheduler.max_num_batched_tokens=-1",
        (
            "max_num_batched_tokens",
            "-1",
        ),
        id="a budget below nothing",
    ),
]


@pytest.mark.parametrize(("line", "words"), VALUES)
def test_values_outside_of_their_range_are_refused(line, words):
    """`testbed run` reports such errors as it does those above."""
    overrides = OverridesParser.create().parse_overrides(line.split())
    values = {override.key_or_group: override.value() for override in overrides}
    with pytest.raises(InputError) as caught:
        build(configured((), values))
    check_words(words, one_line(caught.value))


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("rate", "arrivals.rate"),
        ("polcy", "policy"),
        ("hydra.run.dr", "hydra.run.dir"),
        ("trace=csv trace.pat", "trace.path"),
        ("policy=example_policy:Slabs sed", "seed"),
    ],
)
def test_mistyped_key_is_refused_with_the_nearest_one(refused, mistyped, meant):
    check_words((f"did you mean {meant}?",), refused(f"run {mistyped}=1"))


def test_key_that_is_like_no_other_is_refused_without_a_guess(refused):
    error = refused("run xyzzy=1")
    check_words(("xyzzy",), error)
    assert "did you mean" not in error


def test_debug_option_shows_the_traceback(testbed):
    with pytest.raises(InputError, match=r"arrivals\.rate=0: must be above 0"):
        testbed("run", "--debug", "arrivals.rate=0")


def test_sweep_refuses_a_class_with_a_built_in_choice(testbed, tmp_path):
    error = testbed.refused(
        "run",
        "-m",
        "policy=paged,custom",
        "policy._target_=example_policy.Slabs",
        "arrivals.duration_s=5",
        "outputs=summary",
    )
    check_words(("policy._target_=example_policy.Slabs",), error)
    assert len(list(tmp_path.glob("runs/*/summary.json"))) < 2


@pytest.mark.parametrize("word", ["policy=paged,null", "speculation=null,heads"])
def test_sweep_refuses_to_select_nothing(testbed, word):
    error = testbed.refused("run", "-m", word, "arrivals.duration_s=5", "outputs=summary")
    check_words((f"{word.partition('=')[0]}=null", "leave"), error)
