"""`testbed hits`: the curve of a trace as table, CSV, figure, page and JSON."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from testbed.experiments.cli.json_answers import HitsAnswer
from testbed.experiments.look.hits.hit_curves import hit_curves, trace_rows
from testbed.experiments.runs.choice_names import KEYS
from testbed.experiments.runs.compose import configured
from testbed.memory.prefix_cache.curves.policy_replay import replayed_hits
from testbed.memory.prefix_cache.eviction.lru import Lru

SHARED = Path(os.environ.get("TESTBED_SHARED", Path(__file__).parents[3] / "shared")) / "data"
# Three prompts of 2, 3 and 2 blocks that begin alike, another one, and the longest again.
PROMPTS = [(32, "1 2"), (40, "1 2 3"), (16, "9"), (40, "1 2 3")]
TRACE = ("trace=csv", "trace.path=prompts.csv", "~server.kv_memory_gib", "server.num_blocks=4")


@pytest.fixture
def prompts(testbed, tmp_path):
    """A trace whose path is prompts.csv."""
    rows = "".join(f"{length},4,{ids}\n" for length, ids in PROMPTS)
    (tmp_path / "prompts.csv").write_text(f"input_tokens,output_tokens,prompt_ids\n{rows}")


def rates(testbed, *words):
    return json.loads(testbed.done("hits", *TRACE, *words, "--json"))


@pytest.mark.usefixtures("prompts")
def test_hits_prints_what_each_size_finds(testbed):
    answer = rates(testbed, "--sizes", "2,3")
    found = {(row["order"], row["num_blocks"]): row["blocks_found"] for row in answer["rates"]}
    # With 3 blocks the second prompt finds two, and so does the last; 2 blocks refuse both.
    assert found == {("lru", 2): 0, ("lru", 3): 4, ("belady", 2): 0, ("belady", 3): 4}
    share = next(row["share"] for row in answer["rates"] if row["num_blocks"] == 3)
    assert share == 4 * 16 / sum(length for length, _ in PROMPTS)
    assert answer.keys() == set(HitsAnswer.__dataclass_fields__)


@pytest.mark.usefixtures("prompts")
def test_pools_of_the_server_are_among_the_sizes(testbed):
    words = ("+tier@server.tiers.dram=dram", "server.tiers.dram.size_gib=1")
    answer = rates(testbed, *words)
    assert answer["pools"]["GPU"] == 4
    assert answer["pools"]["+ dram"] == 4 + 2**30 // answer["block_bytes"]
    sizes = {row["num_blocks"] for row in answer["rates"]}
    assert set(answer["pools"].values()) <= sizes
    table = testbed.done("hits", *TRACE, *words)
    assert "+ dram" in table
    assert "one list over all pools" in table


@pytest.mark.usefixtures("prompts")
def test_other_orders_are_replayed_and_reported(testbed):
    code, printed, progress = testbed("hits", *TRACE, "--orders", "lfu,belady", "--sizes", "3,4")
    assert code == 0
    assert progress.count("replayed lfu") == 2
    assert "lfu" in printed


@pytest.mark.usefixtures("prompts")
def test_an_order_of_the_users_is_replayed_too(testbed):
    words = ("--orders", "example_order:TwoSegments", "--sizes", "3")
    code, printed, _ = testbed("hits", *TRACE, *words)
    assert code == 0
    assert "example_order:TwoSegments" in printed


@pytest.mark.usefixtures("prompts")
def test_hits_writes_csv_figure_and_page(testbed, tmp_path):
    files = ("--csv", "hits.csv", "--figure", "hits.png", "--html", "hits.html")
    testbed.done("hits", *TRACE, *files)
    table = pd.read_csv(tmp_path / "hits.csv")
    assert (table["lru_blocks_found"] <= table["belady_blocks_found"]).all()
    assert (tmp_path / "hits.png").read_bytes().startswith(b"\x89PNG")
    assert "Belady (bound)" in (tmp_path / "hits.html").read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("trace=sharegpt",), "no prompt content"),
        (("trace=chat_histories", "arrivals.duration_s=0.001"), "arrivals: "),
        ((*TRACE, "--sizes", "0"), "--sizes 0"),
        ((*TRACE, "--sizes", "3,x"), "'x'"),
        ((*TRACE, "--orders", ","), "names no eviction order"),
        ((*TRACE, "--orders", "nix"), "eviction=nix: is no option"),
        ((*TRACE, "policy.block_size=24"), "block_size=24: "),
        ((*TRACE, "replicas=2"), "those of one cache"),
        ((*TRACE, "policy=prefix_caching", f"{KEYS['eviction']}=lfu"), "--orders lru,lfu,belady"),
    ],
)
@pytest.mark.usefixtures("prompts")
def test_hits_refuses_in_one_line(testbed, words, reason):
    assert reason in testbed.refused("hits", *words)


def conversations_csv(folder):
    """ShareGPT's conversations, turn by turn, as a CSV whose prompts are the histories so far."""
    turns = pd.read_csv(SHARED / "sharegpt_multiturn" / "sharegpt_chat_turns.csv.gz")
    turns = turns.sort_values(["turn", "conv_id"], kind="stable").head(20_000)
    lengths = turns["history_plus_prompt_tokens"]
    ids = [
        " ".join(str(conversation * 10_000 + i) for i in range(-(-length // 16)))
        for conversation, length in zip(turns["conv_id"], lengths, strict=True)
    ]
    table = pd.DataFrame({"input_tokens": lengths, "output_tokens": 1, "prompt_ids": ids})
    table.to_csv(folder / "prompts.csv", index=False)
    return ["trace=csv", f"trace.path={folder / 'prompts.csv'}"]


def real_traces(folder):
    """The overrides of Mooncake's trace, of sessions of coding agents, and of a CSV."""
    sessions = ("trace.num_sessions=30", "arrivals=sessions", "arrivals.at_once=10")
    yield ["trace=mooncake", f"trace.path={SHARED}/mooncake/conversation_trace.jsonl.gz"]
    path = f"trace.path={SHARED}/agent_sessions/sessions.jsonl.gz"
    yield ["trace=agent_sessions", path, *sessions]
    yield conversations_csv(folder)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the traces are not at hand")
def test_one_pass_equals_untimed_replays_of_real_traces(tmp_path):
    for words in real_traces(tmp_path):
        curves = hit_curves(words)
        rows = trace_rows(configured(words))
        assert len(curves.sizes) >= 12
        for size, hits in zip(curves.sizes, curves.hits["lru"], strict=True):
            replayed = replayed_hits(rows, curves.block_size, size, Lru())
            assert hits == sum(replayed), (words, size)


@pytest.mark.parametrize(
    "word", ["policy=contiguous_max", "policy=tiered", "policy=paged", "scheduler=vllm_v1"]
)
@pytest.mark.usefixtures("prompts")
def test_hits_refuses_parts_that_it_does_not_replay(testbed, word):
    assert word in testbed.refused("hits", *TRACE, word, "--sizes", "2")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("--from-vllm", "vllm serve Qwen/Qwen2.5-7B-Instruct --no-enable-prefix-caching"), "--no"),
        (("--from-sglang", "sglang serve --model-path Qwen/Qwen2.5-7B-Instruct"), "--from-sglang"),
    ],
)
def test_hits_refuses_a_server_whose_cache_it_does_not_replay(testbed, command, option):
    words = ("gpu=l40s", "trace=chat_histories", "arrivals.duration_s=5")
    code, printed, said = testbed("hits", *command, *words)
    assert (code, printed) == (2, "")
    assert option in said.splitlines()[-1]
