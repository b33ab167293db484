"""Windows, caches of e4m3 and policies of several groups: the tokens are those of a forward pass
without any slots.
"""

from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")

import tiny_models as tiny  # noqa: E402
import window  # noqa: E402
from refusals import refuses  # noqa: E402
from test_engine_config import setup  # noqa: E402
from test_engine_correctness import LENGTHS, check  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.core.shapes import read_model  # noqa: E402
from testbed.kernels.engine.architecture import of_spec  # noqa: E402
from testbed.kernels.engine.layout import Pages  # noqa: E402
from testbed.kernels.engine.served_run import assemble, serve_into  # noqa: E402
from testbed.memory.contiguous.reservations import ContiguousPow2  # noqa: E402
from testbed.memory.groups.grouped import Grouped  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching  # noqa: E402
from testbed.sched.chunked import ChunkedPrefill  # noqa: E402
from testbed.sched.preemption import Recompute, Swap  # noqa: E402

FORMS = ("window", "hybrid", "fp8", "fp8 hybrid")


def chunked(policy):
    return ChunkedPrefill(policy, Recompute(), max_num_batched_tokens=7, max_num_seqs=16)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", [Paged, partial(PrefixCaching, block_size=4), ContiguousPow2])
def test_tokens_are_right_with_any_policy(form, policy):
    check(tiny.engine(form, policy), tiny.requests(LENGTHS), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", ["one_page_size", "large_pages", "fixed_split"])
@pytest.mark.parametrize("scheduler", [tiny.mixed, chunked])
def test_tokens_are_right_with_pages_of_groups(form, rule, scheduler):
    policy = partial(Grouped, block_size=4, page_rule=rule)
    engine = tiny.engine(form, policy, scheduler, tiny.pool(96), debug=False)
    records = check(engine, tiny.requests([*LENGTHS, (40, 30), (30, 40)]), form)
    assert records.iterations
    assert engine.scheduler.policy.usage().held == 0


def test_preempted_sequences_of_groups_are_computed_again():
    policy, small = partial(Grouped, block_size=2, page_rule="large_pages"), tiny.pool(36)
    requests = tiny.requests([(9, 27), (8, 28), (10, 26), (7, 29)])
    records = check(tiny.engine("hybrid", policy, spec=small, debug=False), requests, "hybrid")
    assert records.recorder.totals.recomputes > 0


@pytest.mark.parametrize(
    "policy", ["testbed.memory.groups.grouped.Grouped", "testbed.memory.paged.paged.Paged"]
)
def test_config_of_a_windowed_model_in_e4m3_is_run(tmp_path, policy):
    spec = replace(tiny.SHAPES["fp8 hybrid"], name="opt")
    model = {
        "_target_": "testbed.core.specs.ModelSpec",
        **{name: getattr(spec, name) for name in spec.__slots__},
    }
    engine = {"device": "cpu", "dtype": "float32"}
    built = setup(
        tmp_path, model=model, policy={"_target_": policy, "block_size": 4}, engine=engine
    )
    assert serve_into(tmp_path / "out", built)["requests"] == {
        "arrived": 3,
        "finished": 3,
        "rejected": 0,
    }


def test_bytes_of_e4m3_swap_as_they_are():
    small = tiny.pool(64, 256)
    engine = tiny.engine(
        "fp8", partial(Paged, block_size=4), partial(tiny.mixed, preemption=Swap()), small
    )
    records = check(engine, tiny.requests([(9, 20), (8, 21), (10, 19), (7, 22)]), "fp8")
    assert records.recorder.totals.swaps >= 2
    assert engine.runner.attention.pools.device.dtype == torch.uint8


def test_scales_of_a_checkpoint_are_used():
    arch = tiny.architecture("fp8")
    plain, scaled = (tiny.engine("fp8").runner for _ in range(2))
    weights = replace(tiny.weights(arch), kv_scales=torch.full((2, 2, 2), 0.25))
    scaled = assemble(
        tiny.mixed(Paged(tiny.pool(512))), tiny.pool(512), arch, weights, tiny.Options()
    ).runner
    assert (plain.attention.pools.scales == 1).all()
    assert (scaled.attention.pools.scales == 0.25).all()


def test_layers_of_a_column_are_adjacent_blocks():
    spec = replace(tiny.pool(96), groups=tiny.SHAPES["hybrid"].groups, num_layers=6)
    windows = tiny.architecture("hybrid").windows
    assert windows == (None, 9, 9, None, 9, 9)
    layout = Pages(2, Grouped(spec, block_size=4).layout(), windows)  # pages of two layers
    assert [layout.column_of(layer) for layer in range(6)] == [0, 1, 1, 0, 2, 2]


def test_unsupported_forms_are_refused_in_one_line():
    refuses("has experts, which the engine does not support", of_spec, read_model("mixtral-8x7b"))
    with pytest.raises(
        InputError,
        match=r"kv_dtype_bytes=4: ",
    ):
        of_spec(replace(read_model("llama-3-8b"), kv_dtype_bytes=4))
    refuses(
        "Window: ",
        tiny.engine,
        "llama",
        partial(window.Window, sinks=3, window=30, block_size=4),
    )
    refuses(r"engine\.debug=true: ", tiny.engine, "hybrid", Grouped)
    assert of_spec(read_model("mistral-7b-v0.1")).windows == (4096,) * 32
    assert of_spec(read_model("ministral-8b")).windows[:5] == (None, 32768, 32768, 32768, None)
