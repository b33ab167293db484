"""Inputs that say something which nothing reads, or which cannot be: refused before the run."""

import pytest
from refusals import refuses

from testbed import simulate
from testbed.core.request import Request
from testbed.sched.orders import ByPriority

SHORT = {"rate": 1, "duration_s": 5}
PROMPT = {"request_id": 0, "arrival_ps": 0, "prompt_len": 64, "output_len": 4}
TIERED = ("policy=tiered", "trace=chat")


@pytest.mark.parametrize("field", ["memory_bandwidth", "fp16_flops", "link_bandwidth"])
def test_a_data_sheet_changes_no_measured_times(field):
    words = ("server=h200", f"server.gpu.{field}=1e11")
    refuses(f"server.gpu.{field}=1e\\+11: ", simulate, *words, **SHORT)


@pytest.mark.parametrize("cost", [(), ("cost=profile", "cost.path=vllm-0.20/h100-opt-13b-tp1")])
@pytest.mark.parametrize("field", ["memory_bandwidth", "fp16_flops"])
def test_a_data_sheet_changes_no_measured_iterations(cost, field):
    words = ("+system=vllm-v1", "model=opt-13b", "gpu=h100-80gb", f"server.gpu.{field}=1e14")
    refuses(f"server.gpu.{field}=1e\\+14: ", simulate, *words, *cost, **SHORT)


def test_a_data_sheet_changes_derived_times():
    words = ("+system=vllm-v1", "cost.iterations=null", "model=opt-13b", "gpu=h100-80gb")
    slow = simulate(*words, "server.gpu.memory_bandwidth=1e12", **SHORT)
    usual = simulate(*words, **SHORT)
    assert slow.summary["tpot_s"]["mean"] > 2 * usual.summary["tpot_s"]["mean"]


@pytest.mark.parametrize(
    ("model", "num_gpus", "message"),
    [
        ("llama-3-8b", 3, "32 attention heads must be divisible"),
        ("llama-3-8b", 64, "32 attention heads must be divisible"),
        ("qwen2.5-0.5b", 7, "2 heads of K and V can be neither"),
    ],
)
def test_heads_that_do_not_go_round_the_gpus_are_refused(model, num_gpus, message):
    words = (f"model={model}", "gpu=h200", f"server.num_gpus={num_gpus}")
    refuses(message, simulate, *words, **SHORT)


def test_no_engine_is_said_by_leaving_it_out():
    refuses("engine=null: ", simulate, "engine=null", **SHORT)


def test_a_gpu_of_another_name_has_derived_times():
    words = (
        "server=h200",
        "server.gpu.memory_bandwidth=2.4e12",
        "server.gpu.name=half",
        "server.gpu.device=''",
        "server.gpu.transfers=null",
    )
    half, whole = simulate(*words, **SHORT), simulate("server=h200", **SHORT)
    assert "derived for half" in half.summary["run"]["cost"]
    assert half.summary["tpot_s"]["mean"] > 1.3 * whole.summary["tpot_s"]["mean"]


@pytest.mark.parametrize("name", ["num_seqs", "best_of", "num_seq"])
def test_a_column_of_sequences_under_another_name_is_refused(name, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"input_tokens,output_tokens,{name}\n100,10,4\n100,10,4\n")
    refuses(
        f"nothing reads column '{name}'; did you mean 'n'",
        simulate,
        "trace=csv",
        f"trace.path={path}",
        **SHORT,
    )


@pytest.mark.parametrize(
    ("order", "column"),
    [("priority", "priority"), ("aging", "priority"), ("by_session", "session")],
)
def test_an_order_without_what_it_ranks_by_is_refused(order, column):
    refuses(f"order: .* decides by the {column} of a request", simulate, order=order, **SHORT)


class FewestDeclaredFirst(ByPriority):
    """Reads another column than its base."""

    def columns_read(self):
        return ("max_new_tokens",)


def test_an_order_by_declared_outputs_names_the_option_that_declares_some():
    message = r"order: FewestDeclaredFirst .* \(give workload\.max_new_tokens, "
    refuses(message, simulate, order=FewestDeclaredFirst, **SHORT)


def test_a_scheduler_that_retains_needs_sessions_and_a_cache():
    refuses("order=time_to_live: ", simulate, order="time_to_live", **SHORT)
    cached = {"order": "time_to_live", "policy": "prefix_caching", "trace": "sharegpt"}
    refuses("decides by the session of a request", simulate, **cached, **SHORT)


def test_an_eviction_order_without_sessions_is_refused():
    words = ("policy=prefix_caching", "eviction@policy.eviction=by_session", "trace=sharegpt")
    refuses("decides by the session of a request", simulate, *words, **SHORT)


def test_requests_of_ones_own_have_the_priority_that_a_scheduler_reads():
    requests = [Request(**PROMPT), Request(**{**PROMPT, "request_id": 1, "priority": 1})]
    assert simulate(trace=requests, order="priority").summary["requests"]["finished"] == 2
    refuses("decides by the priority", simulate, trace=requests[:1], order="priority")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"prompt_ids": tuple(range(65))}, "65 prompt_ids of 1 tokens", id="too many"),
        pytest.param(
            {"prompt_ids": tuple(range(6)), "tokens_per_id": 16}, "6 prompt_ids of 16", id="blocks"
        ),
        pytest.param({"prompt_ids": (True,) * 64}, "one of prompt_ids=True", id="truth values"),
        pytest.param({"prompt_ids": True}, "must be a tuple of ids", id="no tuple"),
        pytest.param({"tokens_per_id": 16}, "tokens_per_id=16 without", id="without ids"),
        pytest.param({"session": -1}, "session=-1", id="a session below 0"),
        pytest.param({"num_seqs": True}, "num_seqs=True", id="a truth value as a count"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(fields, message):
    refuses(message, simulate, trace=[Request(**{**PROMPT, **fields})])


@pytest.mark.parametrize("size", ["0", "1e-6"])
def test_a_tier_below_a_block_is_refused(size):
    words = (*TIERED, f"+server.tiers.dram.size_gib={size}")
    refuses("server.tiers.dram: ", simulate, *words, **SHORT)


def test_a_slow_tier_above_a_faster_one_is_refused():
    words = (*TIERED, "+tier@server.tiers.nvme=nvme", "+tier@server.tiers.dram=dram")
    refuses(r"server\.tiers: ", simulate, *words, **SHORT)


@pytest.mark.parametrize("mix", ["1:0.3,4:0.3", "1:1,beam2:3"])
def test_shares_that_do_not_sum_to_1_are_refused(mix):
    refuses(r"workload\.mix=", simulate, mix=mix, **SHORT)


TIMED = "input_tokens,output_tokens,arrival_s,priority\n64,4,0,1\n64,4,1,0\n"


@pytest.fixture
def timed(tmp_path):
    path = tmp_path / "timed.csv"
    path.write_text(TIMED)
    return "trace=csv", f"trace.path={path}"


def unread(*words, **options):
    return simulate(*words, **options).summary["run"]["unread_note"]


def test_times_and_priorities_that_a_run_does_not_read_are_named(timed):
    note = unread(*timed, **SHORT)
    assert "times" in note
    assert "priorities" in note


def test_nothing_is_unread_where_times_are_replayed_and_priorities_ranked(timed):
    assert unread(*timed, "arrivals=replay", "order=priority") is None


LOOPS = {
    "closed_loop": ("arrivals=closed_loop", "arrivals.num_requests=2"),
    "benchmark": ("arrivals=benchmark", "arrivals.num_requests=2", "arrivals.rate=1"),
    "sessions": ("arrivals=sessions",),
}


@pytest.mark.parametrize("name", LOOPS)
def test_times_and_think_times_that_a_loop_does_not_read_are_named(name, tmp_path):
    path = tmp_path / "timed.csv"
    path.write_text(
        "input_tokens,output_tokens,arrival_s,session,think_s\n64,4,0,a,0\n64,4,1,a,3\n"
    )
    note = unread("trace=csv", f"trace.path={path}", *LOOPS[name])
    assert "its times" in note
    assert ("think times" in note) == (name != "sessions")


def test_a_trace_without_columns_of_its_own_has_nothing_unread():
    assert unread(**SHORT) is None
