"""From a config or a folder to tokens, raw rows and a simulated run's folder; what does not fit is
refused.
"""

import csv
import json
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")

import tiny_models as tiny  # noqa: E402
from refusals import refuses  # noqa: E402
from same_runs import assert_same_rows  # noqa: E402
from tiny import OneSecond  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.core.request import PS  # noqa: E402
from testbed.cost.model import WORK_COLUMNS, Moved, Work, work_cells  # noqa: E402
from testbed.engine.recorder import request_columns, span_columns, with_identity  # noqa: E402
from testbed.engine.simulation import simulate  # noqa: E402
from testbed.kernels.engine.architecture import of_folder  # noqa: E402
from testbed.kernels.engine.records import MEASURED, Timer  # noqa: E402
from testbed.kernels.engine.served_run import engine_options, make_engine, serve_into  # noqa: E402
from testbed.kernels.engine.weight_folder import load_weights  # noqa: E402
from testbed.kernels.engine.weights import WHOLE, Parts, assembled  # noqa: E402
from testbed.memory.groups.grouped import Grouped  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.run.build import build  # noqa: E402
from testbed.run.config import RunConfig  # noqa: E402
from testbed.run.identity import identify  # noqa: E402
from testbed.run.metrics import summarize  # noqa: E402
from testbed.sched.preemption import Swap  # noqa: E402

OPT = {
    "model_type": "opt",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "ffn_dim": 64,
    "num_hidden_layers": 2,
    "vocab_size": 61,
    "max_position_embeddings": 128,
}
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}

TIMES = ("start", "duration", "host", "wait")


ATTENTION = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
NAMES = {  # that Hugging Face gives the tensors: of the model, of a layer, and of both kinds
    "opt": (
        "model.decoder.",
        "embed_tokens.weight embed_positions.weight final_layer_norm.weight final_layer_norm.bias",
        f"{ATTENTION} self_attn_layer_norm self_attn.out_proj final_layer_norm fc1 fc2",
        "weight bias",
    ),
    "qwen2": (
        "model.",
        "embed_tokens.weight norm.weight",
        f"{ATTENTION} input_layernorm self_attn.o_proj "
        "post_attention_layernorm mlp.gate_proj mlp.up_proj mlp.down_proj",
        "weight",
    ),
}


def folder(path, config):
    """A model folder as Hugging Face writes it."""
    arch, tensors = tiny.architecture(config["model_type"]), {}

    def get(name, shape):
        return tensors.setdefault(name, torch.randn(shape))

    built = assembled(arch, Parts(get, WHOLE, "cpu", torch.float32))
    (path / "config.json").write_text(json.dumps(config))
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    safetensors.save_file(tensors, path / "model.safetensors")
    prefix, outer, inner, kinds = NAMES[config["model_type"]]
    names = {
        f"{prefix}layers.{i}.{name}.{kind}"
        for i in (0, 1)
        for name in inner.split()
        for kind in kinds.split()
    }
    biases = {f"{prefix}layers.{i}.self_attn.{x}_proj.bias" for i in (0, 1) for x in "qkv"}
    assert {*tensors} == names | biases | {prefix + name for name in outer.split()}
    return built


@pytest.mark.parametrize("config", [OPT, QWEN2], ids=["opt", "qwen2"])
def test_weights_loaded_from_a_folder_give_equal_logits(tmp_path, config):
    want = folder(tmp_path, config)
    arch = of_folder(tmp_path)
    loaded = load_weights(arch, tmp_path, "cpu", torch.float32)
    tokens = torch.arange(20)
    assert torch.equal(
        tiny.dense_logits(arch, loaded, tokens), tiny.dense_logits(arch, want, tokens)
    )


def test_weights_of_another_shape_are_refused(tmp_path):
    folder(tmp_path, OPT)
    (tmp_path / "config.json").write_text(
        json.dumps(OPT | {"hidden_size": 64, "word_embed_proj_dim": 64})
    )
    with pytest.raises(InputError, match=r"of shape \[61, 32\]: config.json requires \[61, 64\]"):
        load_weights(of_folder(tmp_path), tmp_path, "cpu", torch.float32)


SMALL_GPU = {
    "_target_": "testbed.core.specs.GpuSpec",
    "name": "x",
    "memory_bytes": 1 << 30,
    "memory_bandwidth": 1e12,
    "fp16_flops": 1e12,
    "host_bandwidth": 1e9,
    "link_bandwidth": 1e9,
}


def run_config(tmp_path, **changes):
    """A config as a run folder has it, for a tiny model on a CPU."""
    (tmp_path / "requests.csv").write_text(
        "arrival_s,input_tokens,output_tokens\n0.0,9,4\n0.01,20,6\n0.02,3,5\n"
    )
    names = tiny.ModelSpec.__dataclass_fields__
    model = {name: getattr(tiny.SHAPES["opt"], name) for name in names}
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 16}
    return {
        "model": {"_target_": "testbed.core.specs.ModelSpec", **model},
        "server": {
            "name": "x",
            "num_gpus": 1,
            "gpu": SMALL_GPU,
            "kv_memory_gib": {"opt": 0.001},
        },
        "policy": {"_target_": "testbed.memory.paged.paged.Paged", "block_size": 4},
        "scheduler": {"_target_": "testbed.sched.mixed.MixedPrefill", **limits},
        "preemption": {"_target_": "testbed.sched.preemption.Recompute"},
        "trace": {
            "_target_": "testbed.traces.csv_lengths.CsvLengths",
            "path": str(tmp_path / "requests.csv"),
        },
        "arrivals": {"_target_": "testbed.engine.arrivals.Replay"},
        "cost": {
            "_target_": "testbed.cost.analytic.AnalyticCost",
            "efficiencies": {"_target_": "testbed.cost.analytic.Efficiencies"},
        },
        "beams": {"_target_": "testbed.sched.beam_search.SyntheticBeams"},
        "swap_space_gib": 0,
        "engine": {"device": "cpu", "dtype": "float32", "debug": True},
    } | changes


def setup(tmp_path, **changes):
    return build(RunConfig.from_values(run_config(tmp_path, **changes)))


def test_config_is_run_into_result_tables(tmp_path):
    summary = serve_into(tmp_path / "out", setup(tmp_path))
    assert summary["requests"] == {"arrived": 3, "finished": 3, "rejected": 0}
    requests = list(csv.DictReader((tmp_path / "out" / "requests.csv").open()))
    assert [int(row["output_len"]) for row in requests] == [4, 6, 5]
    assert all(
        float(r["arrival_s"]) <= float(r["first_token_s"]) <= float(r["finish_s"]) for r in requests
    )
    iterations = list(csv.DictReader((tmp_path / "out" / "iterations.csv").open()))
    assert sum(int(row["work_decode_seqs"]) for row in iterations) == 3 + 5 + 4
    check_times([{name: float(row[f"{name}_s"]) for name in TIMES} for row in iterations])


V1 = {
    "_target_": "testbed.sched.vllm_v1.VllmV1",
    "max_num_batched_tokens": 64,
    "max_num_seqs": 16,
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
}
AHEAD = {"_target_": "testbed.sched.vllm_v1.AsyncVllmV1", "ignore_eos": True}
NGRAM = {"_target_": "testbed.speculation.ngram.NGram", "lookup_min": 1}


def test_a_config_with_drafts_gives_the_same_outputs(tmp_path):
    built = setup(tmp_path, scheduler=V1, speculation=NGRAM)
    engine = make_engine(built)
    summary = serve_into(tmp_path / "out", built, engine)
    plain = make_engine(setup(tmp_path, scheduler=V1))
    assert engine.records.outputs == plain.serve(list(built.workload)).outputs
    counts = summary["speculation"]
    assert counts["steps"] + counts["accepted"] == 3 + 5 + 4
    assert counts["drafted"] >= counts["accepted"]
    assert "that the model generates" in summary["run"]["draft_cost"]
    assert "acceptance" not in summary["run"]["speculation"]


def drafting(**changes):
    """A model that drafts, of the shape of the one that serves but for these changes."""
    names = tiny.ModelSpec.__dataclass_fields__
    shape = {name: getattr(tiny.SHAPES["opt"], name) for name in names} | changes
    drafter = {"_target_": "testbed.core.specs.ModelSpec", **shape}
    return {"_target_": "testbed.speculation.draft_model.DraftModel", "drafter": drafter}


def test_a_model_drafts_with_random_weights_or_those_of_a_folder(tmp_path):
    """The model's own random weights accept every draft, others few."""
    built = setup(tmp_path, scheduler=V1, speculation=drafting())
    engine = make_engine(built)
    accepted = serve_into(tmp_path / "itself", built, engine)["speculation"]["accepted"]
    path = tmp_path / "drafter"
    path.mkdir()
    folder(path, OPT)
    options = {"device": "cpu", "dtype": "float32", "debug": True, "draft_weights": str(path)}
    other = setup(tmp_path, scheduler=V1, speculation=drafting(), engine=options)
    engine_of_two = make_engine(other)
    counts = serve_into(tmp_path / "other", other, engine_of_two)["speculation"]
    assert engine.records.outputs == engine_of_two.records.outputs
    assert counts["accepted"] < accepted
    assert any(str(path) in name for name in identify(other.config).inputs["files"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"speculation": drafting(vocab_size=60)},
            "speculation.drafter=opt: has 60 tokens",
        ),
        (
            {"speculation": drafting(max_len=64)},
            "speculation.drafter=opt: serves up to 64 tokens, and model.max_len is 128",
        ),
        (
            {"speculation": drafting() | {"takes_memory": False}},
            "speculation.takes_memory=false: a model that drafts on the engine takes memory",
        ),
        (
            {"engine": {"device": "cpu", "dtype": "float32", "draft_weights": "there"}},
            "engine.draft_weights=there: no model drafts",
        ),
        (
            {"speculation": {"_target_": "testbed.speculation.heads.Heads"}},
            "speculation: Heads has no weights that the engine could draft by",
        ),
        (
            {"speculation": NGRAM | {"found_share": 0.5}},
            "speculation.found_share=0.5: the engine looks for drafts in the tokens themselves",
        ),
        (
            {"speculation": NGRAM | {"lookup_max": 2, "lookup_min": 3}},
            "speculation.lookup_min=3: is more than lookup_max=2",
        ),
        (
            {"scheduler": V1 | AHEAD},
            "the next one cannot be planned ahead",
        ),
        ({"workload": {"num_seqs": 2}}, "parallel samples and beams are not modelled with drafts"),
        (
            {"preemption": {"_target_": "testbed.sched.preemption.Swap"}, "swap_space_gib": 1},
            "preemption=Swap: is not modelled with drafts, or in order of rank",
        ),
    ],
)
def test_drafts_that_the_engine_does_not_compute_are_refused(tmp_path, changes, message):
    options = {"scheduler": V1, "speculation": NGRAM, **changes}
    refuses(message, lambda: make_engine(setup(tmp_path, **options)))


SGLANG = {"_target_": "testbed.sched.sglang.SGLang", "max_running_requests": 8}
OFFLOADING = "testbed.memory.offloading"


@pytest.mark.parametrize(
    ("policy", "scheduler"),
    [("vllm.VllmOffloading", V1), ("lmcache.LMCache", V1), ("hicache.HiCache", SGLANG)],
)
def test_tiers_of_other_servers_are_refused(tmp_path, policy, scheduler):
    tier = {"_target_": "testbed.core.specs.TierSpec", "size_gib": 0.001}
    on = {**run_config(tmp_path)["server"], "tiers": {"dram": tier}}
    chosen = {"_target_": f"{OFFLOADING}.{policy}", "block_size": 4}
    built = setup(tmp_path, policy=chosen, scheduler=scheduler, server=on)
    refuses("in the steps of another server", make_engine, built)


def test_drafts_on_several_gpus_are_refused(tmp_path):
    values = run_config(tmp_path, scheduler=V1, speculation=NGRAM)
    values["server"] |= {"num_gpus": 2}
    built = build(RunConfig.from_values(values))
    refuses("server.num_gpus=2: ", lambda: make_engine(built))


def test_ranked_requests_with_a_prefix_cache_are_refused(tmp_path):
    """vLLM publishes the blocks of a scheduled request, and may preempt it in the same plan."""
    ranked = V1 | {"order": {"_target_": "testbed.sched.orders.ByPriority"}}
    caching = {
        "_target_": "testbed.memory.prefix_cache.prefix_caching.PrefixCaching",
        "block_size": 4,
    }
    for values, is_refused in (({}, False), ({"policy": caching}, True)):
        config = RunConfig.from_values(run_config(tmp_path, scheduler=ranked, **values))
        (tmp_path / "requests.csv").write_text(
            "arrival_s,input_tokens,output_tokens,priority\n0.0,9,4,1\n0.01,20,6,0\n"
        )
        if is_refused:
            refuses("order: ", make_engine, build(config))
        else:
            with make_engine(build(config)):
                pass


def check_times(rows, rounding_s=1e-6):
    """At any duration: the wait lies inside its iteration; host and wait end
    before the next.

    Host time also covers the bookkeeping after the iteration's end, so duration_s says nothing of
    it.
    """
    assert all(row["host"] > 0 <= row["wait"] <= row["duration"] + rounding_s for row in rows)
    for row, after in pairwise(rows):
        assert (
            max(row["host"] + row["wait"], row["duration"])
            <= after["start"] - row["start"] + rounding_s
        )


@pytest.mark.parametrize("on_gpu", [False, True])
def test_waiting_and_the_device_are_timed_exactly(monkeypatch, on_gpu):
    """By a clock that goes on by 1/64 s whenever it is read, and events that note it."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now.append(now[-1] + 1 / 64) or now[-1])
    event = {
        "record": lambda self: vars(self).update(at=now[-1]),
        "synchronize": lambda self: None,
        "elapsed_time": lambda self, end: 1e3 * (end.at - self.at),
    }
    monkeypatch.setattr("torch.cuda.Event", lambda enable_timing: type("Event", (), event)())
    timer = Timer(on_gpu)
    device_time = timer.launch()
    now.append(1.0)
    timer.launched()
    now.append(1.25)
    timer.launched()  # once a launch
    device_time.end()
    with timer.waiting():  # its end and its begin are 1/64 s apart
        now.append(2.0)
    assert (timer.take_waited(), timer.take_waited()) == (0.75, 0.0)
    assert device_time.seconds == pytest.approx(0.25 * on_gpu, abs=1e-12)


def test_a_launch_that_hands_no_work_to_the_device_takes_no_time_there():
    timer = Timer()
    assert timer.launch().seconds == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {"device": "cpu", "speed": 9}}, "engine.speed: nothing reads it"),
        ({"engine": {"device": "cpu", "dtype": "int8"}}, "engine.dtype='int8': must be 'float16'"),
        ({"engine": {"device": "tpu"}}, "engine.device=tpu: must be cuda or cpu"),
        ({"policy": {"_target_": "testbed.memory.paged.paged.Peged"}}, "has no attribute 'Peged'"),
    ],
)
def test_bad_engine_configs_are_refused(tmp_path, changes, message):
    refuses(message, lambda: engine_options(setup(tmp_path, **changes).config.engine))


@pytest.mark.parametrize(("num_seqs", "window_s"), [(1, None), (3, None), (1, (4.0, 25.0))])
def test_engine_and_simulator_agree_step_by_step(num_seqs, window_s):
    """If an iteration takes the same time, both record the same: requests, spans, totals,
    summary.
    """
    window_ps = tuple(round(at * PS) for at in window_s) if window_s else None
    options = {"snapshots_ps": window_ps, "stop_ps": window_ps[1]} if window_s else {}
    requests = tiny.requests(tiny.LENGTHS, num_seqs)
    scheduler = partial(tiny.mixed, preemption=Swap())
    engine = tiny.engine(
        spec=tiny.pool(160 if num_seqs > 1 else 96, 512), scheduler=scheduler, window_s=window_s
    )
    ours = agreed(
        engine,
        requests,
        scheduler(Paged(tiny.pool(160 if num_seqs > 1 else 96, 512))),
        window_ps,
        **options,
    )
    assert (ours.end_ps == 25 * PS) == bool(window_s)
    assert ours.totals.swaps or window_s


def test_engine_and_simulator_agree_on_a_policy_of_several_groups():
    policy = partial(Grouped, block_size=4, page_rule="large_pages")
    spec = replace(tiny.pool(40), groups=tiny.SHAPES["hybrid"].groups, num_layers=6)
    engine = tiny.engine("hybrid", policy, spec=tiny.pool(40), debug=False)
    agreed(engine, tiny.requests([(9, 27), (8, 28), (10, 26), (7, 29)]), tiny.mixed(policy(spec)))


def agreed(engine, requests, scheduler, window_ps=None, **options):
    """The engine's record, which a simulation with this scheduler records too."""
    ours = engine.serve(requests).recorder
    theirs = simulate(requests, scheduler, OneSecond(), 128, fast_forward=False, **options)
    assert summarize(ours, 96, window_ps) == summarize(theirs, 96, window_ps)
    assert_same_rows(ours.requests, theirs.requests)
    assert_same_rows(ours.spans, theirs.spans)
    return ours


def test_engine_folder_has_the_files_of_a_simulation(tmp_path):
    pd = pytest.importorskip("pandas")
    built = setup(tmp_path, window_s=[0.0, 100.0])
    engine = make_engine(built)
    assert serve_into(tmp_path / "out", built, engine)["engine"] == {
        "kind": "cpu",
        "fingerprint": None,
    }
    recorder = engine.records.recorder
    for name, columns in (
        ("requests", with_identity(request_columns(recorder), built.workload.rows)),
        ("iterations", span_columns(recorder)),
    ):
        table = pd.DataFrame(columns)
        loaded = pd.read_csv(
            tmp_path / "out" / f"{name}.csv",
            keep_default_na=name != "requests",
            na_values={"hit_tokens": ""},
        )
        more = [*MEASURED, *WORK_COLUMNS] if name == "iterations" else []
        assert [*loaded.columns] == [*table.columns, *more]
        pd.testing.assert_frame_equal(
            loaded[[*table.columns]].astype(table.dtypes.to_dict()), table
        )
    rows = list(csv.DictReader((tmp_path / "out" / "iterations.csv").open()))
    assert [[row[name] for name in WORK_COLUMNS] for row in rows] == [
        [*map(str, work_cells(iteration.work))] for iteration in engine.records.iterations
    ]


def test_cells_of_work_are_numbers_and_lists_as_json():
    work = Work(
        decode_seqs=3,
        decode_context=70,
        prefill=((9, 0), (2, 30)),
        moves=(Moved(source="device", target="host", length=16, num_transfers=3),),
        extra=(("pages", 7),),
    )
    cells = dict(zip(WORK_COLUMNS, work_cells(work), strict=True))
    assert (cells["work_decode_seqs"], cells["work_decode_context"]) == (3, 70)
    assert cells["work_prefill"] == "[[9,0],[2,30]]"
    assert cells["work_moves"] == '[["device","host",16,3,null]]'
    assert cells["work_extra"] == '[["pages",7]]'
    assert cells["work_copies"] == "[]"
