"""Wrong input gives one line that names the culprit, exit code 2, no traceback, and nothing
half-written.

A row is a command line and the words that its error must hold: the key, the value, the way out;
`rate is 0` stands for the words on either side of the `is`.
"""

import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from testbed.build import build
from testbed.core.errors import InputError
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.progress import one_line

PROFILE = "cost=profile cost.path=h200-opt-13b-tp1"
VALUES = {  # of keys
    "a rate of zero": ("arrivals.rate=0", "arrivals.rate=0: must be above 0"),
    "a rate of more than a float holds": ("arrivals.rate=1e400", "arrivals.rate is inf"),
    "a duration that 64 bits of picoseconds do not hold": (
        "arrivals.duration_s=1e8 arrivals.rate=1e-7",
        "arrivals.duration_s",
    ),
    "a block too large": ("policy.block_size=300", "block_size=300: must be"),
    "a fraction of a token": ("policy.block_size=1.5", "policy.block_size is 1.5"),
    "a number for a window": ("window_s=3", "window_s is 3"),
    "a window that ends before it begins": ("window_s=[5,1]", "window_s is [5, 1]"),
    "a word for a switch": ("workload.beam=maybe", "beam is 'maybe'"),
    "half a GPU": ("server.num_gpus=0.5", "num_gpus is 0.5"),
    "one pool for all models": ("server.kv_memory_gib=3", "server.kv_memory_gib"),
    "a pool given twice": (
        "server.num_blocks=900",
        "server.num_blocks is 900",
        "983 blocks",
        "~server.kv_memory_gib",
    ),
    "a share of memory with a pool that is given": (
        "server.memory_utilization=0.5",
        "server.memory_utilization is 0.5",
        "~server.kv_memory_gib",
    ),
    "another shape under the name of a model that ships": (
        "model.num_layers=80",
        "model.num_layers is 80",
        "opt-13b has 40",
        "model.name",
    ),
    "more than all of the peak": (
        "cost.roofline.linear_flops=72",
        "linear_flops=72: exceeds the maximum of 1",
    ),
    "more than all of the bandwidth": (
        "cost.roofline.attention_bandwidth=56.9",
        "attention_bandwidth is 56.9",
    ),
    "a bandwidth in GB/s": (
        "server.gpu.memory_bandwidth=1555",
        "server.gpu.memory_bandwidth is 1555",
        "bytes/s",
    ),
    "memory without end": ("swap_space_gib=1e300", "swap_space_gib is 1e+300", "GiB"),
    "a window beyond time": ("window_s=[1e300,1e301]", "window_s is 1e+300", "9,000,000 s"),
    "products that reach nothing of the peak": (
        "cost.roofline.linear_flops=0",
        "linear_flops is 0",
    ),
    "software time beyond time": (
        "cost.roofline.layer_s=1e9",
        "layer_s is 1000000000.0",
        "9,000,000 s",
    ),
    "the pool of fewer GPUs": (
        "server.num_gpus=2",
        "opt-13b",
        "2 a100-40gb",
        "server.kv_memory_of.num_gpus=2",
    ),
    "a budget below nothing": (
        "scheduler.max_num_batched_tokens=-1",
        "max_num_batched_tokens is -1",
    ),
}
RUN = {
    "an override without an equals sign": ("foo", "foo"),
    "a sweep by Hydra's key": (
        "hydra.mode=MULTIRUN seed=0,1",
        "hydra.mode=MULTIRUN: is not read",
        "-m",
    ),
    "an option without its value": ("--config-dir", "--config-dir: expected one argument"),
    "a content column that is not there": (
        "trace=csv trace.path=lengths.csv trace.prompt_ids_column=typo",
        "no column 'typo'",
    ),
    "a model that is no YAML": ("--config-dir=mine model=odd server=h200", "while parsing"),
    "a model larger than its server": ("model=opt-175b server=a100-40gb-x1", "opt-175b"),
    "a group in the wrong place": (
        "policy=prefix_caching eviction=arc",
        "eviction@policy.eviction",
    ),
    "more requests than memory holds": (
        "arrivals.rate=1e9 arrivals.duration_s=1e5",
        "lower arrivals.rate or arrivals.duration_s",
    ),
    "more slots than 64 bits number": ("arrivals=slotted arrivals.slot_s=1e-9", "arrivals.slot_s"),
    "a time stamp that 64 bits do not hold": (
        "trace=csv trace.path=late.csv arrivals=replay",
        "1e+07 s",
    ),
    "time stamps made late by slow motion": (
        "trace=csv trace.path=timed.csv arrivals=replay arrivals.speedup=1e-6",
        "arrivals.speedup",
    ),
    "an eviction order of a policy that caches nothing": (
        "eviction@policy.eviction=arc",
        "the chosen policy has no eviction",
        "leave eviction@policy.eviction=... out",
    ),
    "a share of beams of one sequence": (
        "workload.mix=1:1,beam1:1",
        "'beam1:1' is no share",
        "of 2 or more",
    ),
    "beams without their record": (
        "beams=recorded workload.beam=true workload.num_seqs=2",
        "beams.path: has no value",
    ),
    "a beam of one sequence": (
        "workload.beam=true",
        "a beam of one sequence",
        "workload.num_seqs=2 or more",
    ),
    "swapping without swap space": (
        "preemption=swap swap_space_gib=0",
        "swap_space_gib=0 leaves no slots",
        "preemption=recompute",
    ),
    "a record of beams that is not there": (
        "beams=recorded beams.path=nowhere.csv workload.beam=true workload.num_seqs=2",
        "nowhere.csv: No such file",
    ),
    "a record of beams for requests without any": (
        "beams=recorded beams.path=searches.csv",
        "no request uses beam search",
        "give workload.beam=true",
    ),
    "a pool larger than its GPU": (
        "'server.kv_memory_gib={opt-13b: 500}'",
        "server.kv_memory_gib.opt-13b",
        "500 GiB",
        "1 a100-40gb",
    ),
    "more blocks than a GPU holds": (
        "~server.kv_memory_gib server.num_blocks=999999",
        "server.num_blocks",
        "1 a100-40gb",
    ),
    "swapping by a policy without a host tier": (
        "policy=grouped preemption=swap",
        "preemption=swap: Grouped moves no sequences",
        "preemption=recompute",
    ),
    "blocks of layers that share no block": (
        "model=gemma-2-27b policy=grouped ~server.kv_memory_gib server.num_blocks=900",
        "server.num_blocks=900",
        "gemma-2-27b's groups",
        "give server.kv_memory_gib",
    ),
    "a tier that the policy does not use": (
        "policy=paged +tier@server.tiers.dram=dram",
        "server.tiers: Paged uses no tier",
        "policy=tiered",
        "dram out",
    ),
    "a workspace with blocks that are given": (
        "~server.kv_memory_gib server.num_blocks=9 server.workspace_gib=2",
        "server.workspace_gib is 2",
    ),
    "heads that do not share K and V": ("model=llama-3-8b model.num_kv_heads=3", "num_kv_heads"),
    "an efficiency with a profile": (
        "cost.roofline.linear_flops=0.5",
        "linear_flops=0.5: nothing reads it",
        "cost.efficiencies.linear_flops=0.5",
    ),
    "a profile of another model": (
        "cost.path=h200-opt-13b-tp1 model=mixtral-8x7b server=h200 server.num_gpus=2",
        "cost.path=h200-opt-13b-tp1",
        "mixtral-8x7b's shape and types on 2 GPU(s)",
    ),
    "skewed experts of a roofline": (
        "cost.choices.experts=skewed model=mixtral-8x7b server=h200 server.num_gpus=2",
        "experts=skewed",
        "cost.path",
    ),
    "swaps that nobody measured": (
        f"server=h200 {PROFILE} cost.choices.swap=foo",
        "swap: foo is not one of fused",
    ),
    "graphs of no requests": (
        f"server=h200 {PROFILE} cost.choices.cuda_graph_sizes=[0]",
        "cuda_graph_sizes.0=0: must be above 0",
    ),
    "the pool of another GPU": (
        "gpu@server.gpu=h200",
        "1 a100-40gb",
        "1 h200",
        "~server.kv_memory_gib",
        "server.kv_memory_of.gpu=h200",
    ),
    "costs of another GPU": (
        "cost=profile cost.path=h200-opt-13b-tp1",
        "NVIDIA H200",
        "a100-40gb (NVIDIA A100-SXM4-40GB)",
        "cost=auto",
    ),
    "costs carried from another GPU than theirs": (
        "cost=sosp23 gpu@cost.source=h100-80gb cost.path=h200-opt-13b-tp1",
        "NVIDIA H200",
        "cost.source",
        "h100-80gb",
    ),
    "a profile that is no JSON": (
        "cost=profile cost.path=lengths.csv",
        "lengths.csv: not a profile",
    ),
    "outputs that nobody knows": ("outputs=nothing", "outputs is 'nothing'"),
    "a replay without time stamps": ("arrivals=replay", "arrivals=replay"),
    "sessions of a file of lengths": (
        "trace=csv trace.path=lengths.csv arrivals=sessions",
        "trace=agent_sessions",
    ),
    "a length model that is none": ("trace.model=nope", "model='nope': is not a model"),
    "a class in a file with mistakes": ("policy=syntax_mistake:Policy", "syntax_mistake"),
    "a class that is no policy": (
        "policy=not_a_policy:Policy",
        "no testbed.memory.policy.MemoryPolicy",
    ),
    "a function that gives no policy": (
        "policy=custom policy._target_=own_parts.nothing",
        "own_parts.nothing",
    ),
    "a trace that gives no rows": (
        "trace=custom trace._target_=own_parts.Rowless",
        "own_parts.Rowless.rows",
    ),
    "a scheduler that takes fewer limits": (
        "scheduler=custom scheduler._target_=own_parts.Bare",
        "own_parts.Bare",
        "~scheduler.max_num_seqs",
    ),
    "a plug-in that exits on import": (
        "policy=custom policy._target_=exits.Policy",
        "exits.Policy",
    ),
    "a plug-in that raises on import": (
        "policy=custom policy._target_=raises.Policy",
        "raises.Policy",
    ),
    "a plug-in that exits in the middle": (
        "policy=custom policy._target_=own_parts.LeavesLate",
        "sys.exit(0)",
    ),
    "a replay that has not a time for each row": (
        "trace=csv trace.path=timed.csv arrivals=custom arrivals._target_=own_parts.Replayed "
        "'+arrivals.what=\"np.array([1])\"'",
        "own_parts.Replayed gave 1 times",
    ),
    "a wrong point of a sweep, from a worker": (
        "-m arrivals.rate=0 outputs=summary hydra/launcher=joblib",
        "arrivals.rate=0: must be above 0",
    ),
    "a key that is mistyped in a sweep": (
        "-m seed=0,1 arrivals.rat=2",
        "'arrivals.rat'",
        "did you mean arrivals.rate",
    ),
    "a key that is taken away and mistyped": ("~polic", "did you mean policy?"),
    "a key that is added and mistyped": ("+arrivals.rat=2", "did you mean rate?", "~arrivals.rat"),
}
TIMES = {
    "fractions": "np.array([0.0, 1.5])",
    "text": "str(1)",
    "beyond 64 bits": "np.array([10**19], dtype=np.uint64)",
}
RUN |= {
    f"arrival times that are {kind}": (
        f"arrivals=custom arrivals._target_=own_parts.Given '+arrivals.what=\"{times}\"'",
        "own_parts.Given",
    )
    for kind, times in TIMES.items()
}
MEANT = {
    "rate": "arrivals.rate",
    "polcy": "policy",
    "hydra.run.dr": "hydra.run.dir",
    "trace=csv trace.pat": "trace.path",
    "policy=example_policy:Slabs sed": "seed",
    "xyzzy": None,
}


def slow_or_not(line):
    """Worker processes take ten seconds to start."""
    return [pytest.mark.slow] if "launcher=joblib" in line else []


@pytest.mark.parametrize(
    ("line", "words"),
    [pytest.param(row[0], row[1:], marks=slow_or_not(row[0])) for row in RUN.values()],
    ids=RUN,
)
def test_run_refuses_wrong_options(refused, line, words):
    error = refused(f"run {line}")
    assert all(part in error for word in words for part in word.split(" is ")), error


@pytest.mark.parametrize(
    ("line", "words"), [(row[0], row[1:]) for row in VALUES.values()], ids=VALUES
)
def test_values_are_refused(line, words):
    """`testbed run` reports such errors as it does those above."""
    values = {
        one.key_or_group: one.value()
        for one in OverridesParser.create().parse_overrides(line.split())
    }
    with pytest.raises(InputError) as caught:
        build(configured((), values))
    error = one_line(caught.value)
    assert all(part in error for word in words for part in word.split(" is ")), error


@pytest.mark.parametrize("key", MEANT)
def test_unknown_key_is_refused_with_the_nearest_one(refused, key):
    error = refused(f"run {key}=1")
    assert f"did you mean {MEANT[key]}?" in error if MEANT[key] else "did you mean" not in error, (
        error
    )


def test_debug_option_shows_the_traceback(testbed):
    with pytest.raises(Exception, match=r"arrivals.rate=0: must be above 0"):
        testbed("run", "--debug", "arrivals.rate=0")


def test_sweep_refuses_a_class_with_a_built_in_choice(testbed, tmp_path):
    sweep = (
        "-m",
        "policy=paged,custom",
        "policy._target_=example_policy.Slabs",
        "arrivals.duration_s=5",
    )
    assert "policy._target_=example_policy.Slabs" in testbed.refused(
        "run", *sweep, "outputs=summary"
    )
    assert len(list(tmp_path.glob("runs/*/summary.json"))) < 2


OTHERS = {
    "reproduce table1 --out lengths.csv": "lengths.csv",
    "bench --nope": "--nope",
    "check no_module:Policy": "no_module",
    "check not_a_policy:Policy": "no MemoryPolicy",
    "check own_parts:NeedsALargePool": "too small",
    "check example_policy:Slabs no_such=1": "no_such",
    "check example_policy:Slabs --slots 0": "--slots",
    "compare a=nowhere": "nowhere: no such folder",
    "compare mine": "mine: has no summary.json",
    "timeline nowhere": "nowhere is not a run folder",
    "timeline mine --from x": "--from",
    "capacity paged": "paged",
    "capacity slo.ttft_s=-1": "slo.ttft_s=-1",
    "capacity slo.ttft_s=1 --share 2": "share is 2",
    "capacity slo.ttft_s=1 --low 3": "low is 3",
    "capacity slo.ttft_s=1 stop_at_latency=0.03": (
        "stop_at_latency=0.03: a run that stops before its end"
    ),
    "capacity slo.ttft_s=1 window_s=[0,5]": "window_s=[0.0, 5.0]: a run that stops before its end",
    "capacity slo.ttft_s=1 arrivals.rat=2": "did you mean arrivals.rate?",
    "capacity slo.ttft_s=1 --runs lengths.csv": "lengths.csv",
    "import-model lengths.csv": "lengths.csv: not a JSON file",
    "validate log.csv --within nan": "'nan' is not a number above 0",
    "validate log.csv trace=alpaca arrivals.rate=5": "trace=alpaca: the log has every request",
    "validate log.csv window_s=[0,5]": "window_s=[0,5]: the log has every request",
    "fit-software log.csv ++workload.num_seqs=2": "workload.num_seqs=2: the log has every request",
    "fit-software nowhere.csv": "nowhere.csv",
    "calibrate --model opt-13b:3 --out x": "does not divide",
    "calibrate --model opt-13b llama-13b --out nowhere": "need a folder",
}


@pytest.mark.parametrize("line", OTHERS)
def test_other_commands_refuse_wrong_arguments(refused, line):
    error = refused(line)
    assert all(part in error for part in OTHERS[line].split(" is ")), error


def test_calibrate_names_missing_packages(testbed, monkeypatch):
    for name in ("testbed.kernels.measure.profile_sections", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "calibrate: needs" in testbed.refused(
        "calibrate", "--model", "opt-13b", "--out", "x.json"
    )
