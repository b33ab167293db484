"""`testbed validate` and its kin: errors of a log's simulation, what-if questions, and
arguments that are refused.
"""

import csv
import json
import shutil

import pandas as pd
import pytest
from refusals import check_words, refuses

from testbed.experiments.real.validation.beyond_tested import beyond_tested
from testbed.experiments.real.validation.log_replay import server_config
from testbed.experiments.real.validation.metric_error import MetricError
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.notes import no_note
from testbed.experiments.sglang_server import translation as of_sglang
from testbed.experiments.vllm_server.translation import expand
from testbed.traces.vllm_log import VllmLog

LOG = (
    "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n"
    "90,30,0,0.05,0.8\n"
    "800,50,0.2,0.3,1.5\n"
    "40,1,0.3,0.35,0.35\n"
    "300,80,0.9,1.0,3.2\n"
    "20,10,1.5,1.52,1.8\n"
    "60,40,1.6,1.63,2.6\n"
)
SERVER = ("server=h200", "model=llama-3-8b")


@pytest.fixture
def _log(testbed, tmp_path):
    (tmp_path / "log.csv").write_text(LOG)


pytestmark = pytest.mark.usefixtures("_log")


def rows_of(path):
    """Rows of a table of errors by log and metric."""
    with path.open() as file:
        return {(row["log"], row["metric"]): row for row in csv.DictReader(file)}


def test_errors_are_those_of_the_logged_times(testbed, tmp_path):
    """Means of the six requests: TTFT 0.05833 s, end to end 0.9583 s."""
    testbed.done("validate", "log.csv", *SERVER, "--csv", "v.csv")
    rows = rows_of(tmp_path / "v.csv")
    assert float(rows["log.csv", "ttft_s_mean"]["real"]) == pytest.approx(0.35 / 6)
    assert float(rows["log.csv", "e2e_s_mean"]["real"]) == pytest.approx(5.75 / 6)
    assert float(rows["log.csv", "tokens_per_s"]["real"]) == pytest.approx(211 / 3.2)
    for row in rows.values():
        error = 100 * (float(row["simulated"]) / float(row["real"]) - 1)
        assert float(row["error_percent"]) == pytest.approx(error, abs=1e-3)


def test_what_if_effects_are_changes_from_the_simulation(testbed, tmp_path):
    testbed.done(
        "validate",
        "log.csv",
        *SERVER,
        "--csv",
        "v.csv",
        "--what-if",
        "server.num_gpus=2",
        "--what-if",
        "seed=2",
    )
    rows = rows_of(tmp_path / "v.csv")
    plain, faster, same = (
        rows[name, "tpot_s_mean"]
        for name in ("log.csv", "log.csv, server.num_gpus=2", "log.csv, seed=2")
    )
    assert faster["real"] == plain["simulated"] == same["simulated"]
    assert float(faster["simulated"]) < float(plain["simulated"])
    assert float(same["error_percent"]) == 0
    assert (plain["compared"], faster["compared"]) == ("with the log", "with the simulation")


def test_assumed_memory_and_unsupported_conclusions_are_reported(testbed):
    output = testbed.done("validate", "log.csv", *SERVER)
    check_words(
        (
            "does not say how many KV blocks",
            "server.num_blocks=N",
            "prompts of up to 800 and outputs of up to 80 tokens",
            "what it does not support",
            "memory that runs short",
        ),
        output,
    )


@pytest.mark.parametrize("word", ["server.num_blocks=64", "++server.num_blocks=64"])
def test_pool_and_tiers_of_the_words_are_those_of_a_profile_s_server(word):
    tiers = ("policy=tiered", "+tier@server.tiers.dram=dram", "++server.tiers.dram.size_gib=2")
    profile = ("cost=profile", "cost.path=h200-llama-3-8b-tp1", "gpu=h200")
    server = server_config([*profile, *tiers, word]).server
    assert (server.num_blocks, server.tiers["dram"].size_gib) == (64, 2)


def test_another_gpu_than_the_profile_s_is_refused():
    profile = ("cost=profile", "cost.path=h200-llama-3-8b-tp1")
    refuses("the server has l40s", server_config, [*profile, "gpu=l40s"])


def test_an_error_beyond_the_limit_is_exit_code_1(testbed, tmp_path):
    (tmp_path / "sub").mkdir()
    shutil.copy(tmp_path / "log.csv", tmp_path / "sub")
    code, output, error = testbed("validate", "log.csv", "sub/log.csv", *SERVER, "--within", "1")
    assert (code, error) == (1, "")
    check_words(("not within 1%",), output)
    assert testbed("validate", "log.csv", *SERVER, "--within", "500")[0] == 0


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(
            ("log.csv", "log.csv", "seed=1", "--workload", "x"), ("--workload",), id="one workload"
        ),
        pytest.param(("seed=1",), ("LOG", "missing"), id="no log"),
        pytest.param(("none.csv", "seed=1"), ("none.csv", "no such log"), id="no such log"),
        pytest.param(
            ("log.csv", "cost=analytic", "server.num_block=3"),
            ("did you mean server.num_blocks?",),
            id="a mistyped key",
        ),
        pytest.param(
            ("log.csv", "gpu=a100-80gb"), ("model", "model=NAME", "--from-vllm"), id="no model"
        ),
        pytest.param(
            ("log.csv", "model=llama-3-8b", "gpu=h200", "model.max_len=512"),
            ("850 tokens", "512, llama-3-8b's model.max_len", "model=NAME"),
            id="a longer request than the model's",
        ),
    ],
)
def test_logs_that_cannot_be_validated_are_refused(testbed, words, parts):
    check_words(parts, testbed.refused("validate", *words))


def test_files_that_are_no_log_say_which_file_is_one(testbed, tmp_path):
    """A folder with a log, one without, a summary of aiperf's, a CSV without first tokens."""
    for name in ("sub", "empty"):
        (tmp_path / name).mkdir()
    shutil.copy(tmp_path / "log.csv", tmp_path / "sub" / "requests.csv")
    assert "sub/requests.csv" in testbed.refused("validate", "sub", *SERVER)
    assert ": empty: " in testbed.refused("validate", "empty", *SERVER)
    metric = {"unit": "ms", "avg": 3.2, "p99": 4.0}
    (tmp_path / "profile_export_aiperf.json").write_text(
        json.dumps({"request_latency": metric, "input_config": {}})
    )
    summary = testbed.refused("validate", "profile_export_aiperf.json", *SERVER)
    assert "profile_export.jsonl" in summary
    columns = "input_tokens,output_tokens,arrival_s,finish_s"
    (tmp_path / "late.csv").write_text(f"{columns}\n100,20,0.0,0.5\n200,30,0.4,1.2\n")
    line = testbed.refused("validate", "late.csv", *SERVER)
    assert "no column 'first_token_s'" in line
    assert "trace=csv" in line
    replay = ("trace.path=late.csv", "arrivals=replay", "outputs=summary")
    assert testbed("run", "trace=csv", *replay)[0] == 0  # the way out of that message


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(
            ("log.csv", "--model", "llama-3-8b", "--gpu", "l40s"),
            ("log.csv: 3 of its requests", "second log"),
            id="half a log is too short to judge by",
        ),
        pytest.param(
            ("log.csv", "--model", "llama-3-8b"), ("--gpu", "--from"), id="a model without a GPU"
        ),
        pytest.param(
            ("log.csv", "--model", "llama-3-8b", "--gpu", "h200", "--tensor-parallel", "2"),
            ("model=llama-3-8b", "on 2 GPU(s)", "--from"),
            id="a shard of which there is no profile",
        ),
        pytest.param(
            ("log.csv", "--model", "opt-13b", "--from", "h200-llama-3-8b-tp1"),
            ("--from", "llama-3-8b", "opt-13b"),
            id="a profile of another shape",
        ),
        pytest.param(
            ("log.csv", "log.csv", "log.csv", "--from", "h200-llama-3-8b-tp1"),
            ("3 logs",),
            id="three logs",
        ),
    ],
)
def test_profiles_that_cannot_be_fitted_are_refused(testbed, tmp_path, words, parts):
    check_words(parts, testbed.refused("calibrate", "fit", "profile", *words, "--out", "mine.json"))
    assert not (tmp_path / "mine.json").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(
            ("calibrate", "fit", "constants", "2023"), ("2023", "LENGTHS"), id="no lengths"
        ),
        pytest.param(
            ("calibrate", "fit", "constants", "beams", "lengths.csv"),
            ("reads no file", "lengths.csv"),
            id="a file",
        ),
    ],
)
def test_wrong_arguments_of_validations_are_refused(testbed, words, parts):
    check_words(parts, testbed.refused(*words))


def test_one_rate_of_a_file_of_guidellms_is_validated(testbed, tmp_path):
    def of(lengths):
        times = {"request_start": 1.0, "first_token_iteration": 1.5, "last_token_iteration": 2.0}
        served = [
            {"prompt_tokens": length, "output_tokens": 9, "info": {"timings": times}}
            for length in lengths
        ]
        return {"requests": {"successful": served}}

    content = {"benchmarks": [of([80]), of([70, 60])]}
    (tmp_path / "two.json").write_text(json.dumps(content))
    assert "trace.benchmark" in testbed.refused("validate", "two.json", *SERVER)
    reported = testbed.done("validate", "two.json", *SERVER, "trace.benchmark=1")
    assert "all at once, up to 2 of them running, prompts of up to 70" in reported
    for log, number in (("two.json", 2), ("two.json", "x"), ("log.csv", 0)):
        error = testbed.refused("validate", log, *SERVER, f"trace.benchmark={number}")
        assert "trace.benchmark" in error


def test_the_requests_of_a_run_are_a_log(testbed, tmp_path):
    """The same run again, so that nothing differs."""
    words = ("seed=3", "model=opt-13b", "server=a100-40gb-x1")
    testbed("run", *words, "trace=sharegpt", "arrivals.duration_s=20", "hydra.run.dir=out")
    testbed.done("validate", "out/requests.csv", *words, "--csv", "v.csv")
    errors = [float(row["error_percent"]) for row in rows_of(tmp_path / "v.csv").values()]
    assert len(errors) > 5
    assert errors == pytest.approx([0.0] * len(errors), abs=1e-6)


@pytest.mark.parametrize("path", ["./log.csv", "sub/..//log.csv"])
def test_a_log_may_be_named_in_any_way(testbed, tmp_path, path):
    (tmp_path / "sub").mkdir()
    printed = testbed.done("validate", path, *SERVER)
    assert "log.csv, over time" in printed


def test_the_example_is_a_log_that_ships(testbed):
    server = "vllm serve meta-llama/Llama-3.1-8B --num-gpu-blocks-override 2000"
    line = ("validate", "example", "--from-vllm", f"{server} --max-model-len 8192")
    code, printed, _ = testbed(*line, "gpu=h100-80gb", "--quiet")
    assert code == 0
    assert "ttft_s_mean" in printed
    assert "further than" not in printed


@pytest.mark.parametrize(("longer", "beyond"), [(1.05, False), (3.0, True)])
def test_an_error_far_beyond_the_tested_one_is_named(testbed, tmp_path, longer, beyond):
    """A run's requests, that many times as long: 5% are within what tests of such costs found."""
    words = ("--from-vllm", "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192", "gpu=l40s")
    testbed.done("run", *words, "arrivals.duration_s=20", "hydra.run.dir=out", "--quiet")
    table = pd.read_csv(tmp_path / "out" / "requests.csv")
    for moment in ("first_token_s", "finish_s"):
        table[moment] = table.arrival_s + longer * (table[moment] - table.arrival_s)
    table.to_csv(tmp_path / "longer.csv", index=False)
    answer = json.loads(testbed.done("validate", "longer.csv", *words, "--json", "--quiet"))
    found = [note for note in answer["notes"] if "further than all" in note]
    assert len(found) == beyond
    assert all(name in note for name in ("TTFT", "TPOT", "latency") for note in found)


def causes(folder, real_s, simulated_s, *, options="", meta="{}", interval=None):
    """The likely causes of an error of the mean latency, in order."""
    (folder / "meta.json").write_text(meta)
    command = f"vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192{options}"
    config = configured(expand(command, ("gpu=l40s",), no_note))
    rows = [MetricError("", "e2e_s_mean", real_s, simulated_s)]
    intervals = {"e2e_s_mean": interval} if interval else {}
    *_, last = beyond_tested(VllmLog(str(folder / "log.csv")), config, rows, intervals)
    return last.partition("likely causes: ")[2].split("; ")


def test_a_server_of_sglang_gets_no_advice_of_vllm(tmp_path):
    (tmp_path / "meta.json").write_text("{}")
    command = "sglang serve --model-path meta-llama/Llama-3.1-8B"
    config = configured(of_sglang.expand(command, ("gpu=l40s",), no_note))
    rows = [MetricError("", "e2e_s_mean", 30.0, 3.0)]
    *_, last = beyond_tested(VllmLog(str(tmp_path / "log.csv")), config, rows, {})
    assert "another GPU or host than those of the costs, other work" in last
    assert "--system vllm" not in last
    assert "--enforce-eager" not in last


def test_options_that_the_log_has_otherwise_are_the_first_cause(tmp_path):
    logged = {"max_num_seqs": 128, "max_num_batched_tokens": 4096}
    first, *others = causes(tmp_path, 9.0, 3.0, meta=json.dumps({"engine_kwargs": logged}))
    check_words(("differ: max_num_seqs 128, simulated with ", "tokens 4096, simulated"), first)
    assert len(others) == 1
    assert others == causes(tmp_path, 9.0, 3.0)


@pytest.mark.parametrize(
    ("real_s", "simulated_s", "options", "meta", "named"),
    [
        pytest.param(3.0, 9.0, "", "{}", True, id="simulated too slow"),
        pytest.param(9.0, 3.0, "", "{}", False, id="too fast, as no hit makes it"),
        pytest.param(3.0, 9.0, " --no-enable-prefix-caching", "{}", False, id="no cache"),
        pytest.param(
            3.0, 9.0, "", '{"engine_kwargs": {"enable_prefix_caching": false}}', False, id="logged"
        ),
    ],
)
def test_hits_of_unknown_prompts_are_a_cause(tmp_path, real_s, simulated_s, options, meta, named):
    found = causes(tmp_path, real_s, simulated_s, options=options, meta=meta)
    assert any("--workload" in cause for cause in found) == named


@pytest.mark.parametrize(
    ("interval", "near_full"),
    [((2.5, 10.0), True), ((3.5, 10.0), False), ((8.9, 9.1), False), (None, False)],
)
def test_near_its_limit_a_server_differs_from_itself(tmp_path, interval, near_full):
    """A wide interval that has the measurement inside; no other GPU is a cause then."""
    *_, last = causes(tmp_path, 3.0, 9.0, interval=interval)
    assert ("server is full" in last) == near_full
    assert ("another GPU" in last) != near_full
