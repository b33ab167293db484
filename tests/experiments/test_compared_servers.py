"""Several servers' commands in one line: words on drafts beside a server without any, and what a
server cannot do, which is refused before another one is simulated.
"""

import json
from itertools import combinations

import pytest

from testbed import simulate
from testbed.experiments.runs.run_words import remark_on_planning

LLAMA = "vllm serve meta-llama/Llama-3.1-8B"
EAGLE = '\'{"method": "eagle3", "model": "yuhuili/EAGLE3-X", "num_speculative_tokens": 3}\''
DRAFTS = f"{LLAMA} --speculative-config {EAGLE}"
NGRAM = f'{LLAMA} --speculative-config \'{{"method": "ngram", "num_speculative_tokens": 3}}\''
WAITS = f"{LLAMA} --no-async-scheduling"
LOAD = ("gpu=h100-80gb", "trace=random", "arrivals.duration_s=2")
BOTH = ("--from-vllm", LLAMA, "--from-vllm", DRAFTS, *LOAD)
RATE = "speculation.acceptance.rate"
PER_POSITION = "acceptance@speculation.acceptance=per_position"
SEARCH = ("slo.ttft_s=0.2", "--seeds", "1", "--precision", "0.9", "--low", "20", "--high", "60")


def test_words_on_drafts_are_of_the_servers_that_draft(testbed, tmp_path):
    """The server without drafts runs once, and is beside each acceptance."""
    line = ("run", "-m", *BOTH, "arrivals.rate=2", f"{RATE}=0.1,0.9", "seed=0,1")
    printed = testbed(*line)[1]
    assert len([*tmp_path.glob("runs/*/summary.json")]) == 2 + 2 * 2
    below = printed[printed.index("Differences") :]
    assert [rate for rate in ("0.1", "0.9") if f" {rate} " in below] == ["0.1", "0.9"]
    assert below.count(" - plain") == 2
    rates = json.loads(testbed(*line, "--json")[1])["points"]
    assert [point["values"].get(RATE) for point in rates] == [
        None,
        None,
        *2 * ["0.1"],
        *2 * ["0.9"],
    ]


def test_a_search_of_servers_takes_the_rates_that_one_of_them_logs(testbed):
    words = (*SEARCH, PER_POSITION, "speculation.acceptance.rates=[0.6,0.3,0.1]", "--json")
    plain, drafts = json.loads(testbed("capacity", *BOTH, *words)[1])["servers"]
    assert plain["capacity"]["rate"] > 0 < drafts["capacity"]["rate"]


def test_drafts_without_the_asynchronous_scheduling_of_others_are_named(testbed):
    remark, line = "asynchronous scheduling is on in ", ("run", "-m", "arrivals.rate=2", *LOAD)
    drafts = ("--from-vllm", NGRAM)
    assert remark in testbed(*line, "--from-vllm", LLAMA, *drafts)[1]
    assert remark in testbed("capacity", "--from-vllm", LLAMA, *drafts, *LOAD, *SEARCH)[1]


def test_servers_without_drafts_may_differ_in_asynchronous_scheduling():
    runs = {
        server: simulate(*LOAD, from_vllm=server, rate=2).summary
        for server in (LLAMA, WAITS, NGRAM)
    }
    remarks = {
        pair: [*remark_on_planning({server: runs[server] for server in pair})]
        for pair in combinations(runs, 2)
    }
    assert [pair for pair, found in remarks.items() if found] == [(LLAMA, NGRAM)]


@pytest.mark.parametrize("line", [("run", "-m", "arrivals.rate=2"), ("capacity", *SEARCH)])
def test_words_on_drafts_are_refused_if_no_server_drafts(testbed, line):
    others = ("--from-vllm", LLAMA, "--from-vllm", f"{LLAMA} --max-num-seqs 64", *LOAD)
    code, printed, error = testbed(*line, *others, f"{RATE}=0.5")
    assert (code, printed) == (2, "")
    assert f"{RATE}: " in error


APART = ("replicas=2", "prefill_replicas=1")  # with asynchronous scheduling: not modelled


@pytest.mark.parametrize(
    "line",
    [
        ("run", "-m", "--from-vllm", LLAMA, "replicas=2", "prefill_replicas=null,1"),
        ("capacity", "--from-vllm", WAITS, "--from-vllm", LLAMA, *APART, *SEARCH),
    ],
)
def test_what_one_server_cannot_do_is_refused_before_another_one_runs(testbed, tmp_path, line):
    code, printed, error = testbed(*line, *LOAD)
    assert (code, printed) == (2, "")
    assert "--no-async-scheduling" in error.splitlines()[-1]
    assert not [*tmp_path.glob("runs/**/summary.json")]


def test_a_search_takes_the_values_of_a_list_and_pairs_their_seeds(testbed):
    words = (*LOAD, "scheduler.max_num_seqs=16,64", SEARCH[0], *SEARCH[3:], "--seeds", "2")
    answer = json.loads(testbed("capacity", "--from-vllm", LLAMA, *words, "--json")[1])
    few, many = answer["servers"]
    assert few["command"] == "scheduler.max_num_seqs=16"
    rates = [[seed["rate"] for seed in of["capacity"]["seeds"]] for of in (few, many)]
    differences = [more - less for less, more in zip(*rates, strict=True)]
    assert many["difference"] == pytest.approx(sum(differences) / 2)
    assert all(difference > 0 for difference in differences)


def test_a_search_of_several_commands_and_values_names_both(testbed):
    words = (*LOAD, "scheduler.max_num_seqs=32,64", *SEARCH, "--json")
    servers = ("--from-vllm", LLAMA, "--from-vllm", WAITS)
    names = [
        of["command"] for of in json.loads(testbed("capacity", *servers, *words)[1])["servers"]
    ]
    assert names == [
        f"{server} scheduler.max_num_seqs={most}"
        for server in ("plain", "--no-async-scheduling")
        for most in (32, 64)
    ]


def test_short_runs_are_part_of_a_difference(testbed):
    words = ("capacity", *LOAD, "scheduler.max_num_seqs=16,64", *SEARCH)
    assert "too high by unlike shares" in testbed(*words, "--from-vllm", LLAMA)[1]


@pytest.mark.parametrize("line", [("run", "-m", "arrivals.rate=2"), ("capacity", *SEARCH)])
def test_a_server_that_does_not_start_is_named_by_the_values_that_make_it(testbed, line):
    """So many blocks of 16 tokens fit, and of 64 do not."""
    blocks = ("--from-vllm", f"{LLAMA} --num-gpu-blocks-override 9000 --max-model-len 8192")
    code, printed, error = testbed(*line, *blocks, *LOAD, "policy.block_size=16,64,128")
    assert (code, printed) == (1, "")
    assert "policy.block_size=64: " in error
    alone = testbed(*line, *blocks, *LOAD, "policy.block_size=64")[2]
    assert "policy.block_size=64: " not in alone
