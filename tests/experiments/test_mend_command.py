"""`testbed mend`: a server as it is, its changes on the same seeds, verdicts by differences."""

import json
import re
from dataclasses import replace

import pytest
from test_json_answers import check

from testbed.experiments.cli.capacity_lines import OF_WORKLOAD
from testbed.experiments.cli.json_answers import MendAnswer
from testbed.experiments.mend.change_verdicts import (
    BETTER,
    EQUAL,
    LITTLE,
    LITTLE_WORSE,
    NO_GAIN_AT_FIRST,
    OTHER_COSTS,
    UNKNOWN,
    WORDS,
    WORSE,
    WORSE_AT_FIRST,
    Verdict,
    verdict_at_first,
    verdicts,
)
from testbed.experiments.mend.goals import COMPLETED_RATE, GOALS, GOODPUT, INSIDE, PREEMPTIONS
from testbed.experiments.mend.mend_lines import differences_of, lines_of, rows_of
from testbed.experiments.mend.server_changes import NO_OPTION, NONE, Change, changes_of
from testbed.experiments.mend.trials import Mending
from testbed.experiments.mend.tried import Tried
from testbed.experiments.mend.window_remarks import NOT_COMPARED, OF_WINDOW, window_remarks
from testbed.experiments.vllm_server.translation import own_blocks, served
from testbed.run.while_arriving import COMPLETED, LAST_ARRIVAL, LONGER

SERVER = "vllm serve meta-llama/Llama-3.1-8B-Instruct --num-gpu-blocks-override"
LOAD = (
    "gpu=h100-80gb",
    "trace=guidellm",
    "trace.prompt_tokens=1500",
    "trace.output_tokens=300",
    "trace.output_tokens_stdev=150",
    "arrivals.rate=12",
    "arrivals.duration_s=4",
)


@pytest.fixture
def mended(testbed):
    """Call `testbed mend` with so many blocks: its exit code and its answer."""

    def call(blocks, *words):
        line = ("mend", f"{SERVER} {blocks} --max-model-len 8192", *LOAD, *words)
        code, printed, error = testbed(*line, "--json", "--quiet")
        assert error == ""
        answer = json.loads(printed)
        check(answer, MendAnswer, "mend")
        return code, answer

    return call


def numbers(change):
    return {row["quantity"]: row for row in change["numbers"]}


def test_a_small_pool_is_mended_by_fewer_sequences(mended):
    """Changes run with the fourth seed if they may be the best."""
    code, answer = mended(2000, "--seeds", "4", "--by", "preemptions")
    assert (code, answer["goal"]) == (0, PREEMPTIONS)
    assert answer["preempts"]
    assert any(note.startswith("short runs: ") for note in answer["notes"])
    by_name = {change["change"]: change for change in answer["changes"]}
    assert by_name["--max-num-seqs 16"]["verdict"] == BETTER
    ranks = [WORDS.index(change["verdict"]) for change in answer["changes"]]
    assert ranks == sorted(ranks)
    ours = numbers(answer["server"])
    for change in (of for of in answer["changes"] if of["num_seeds"] == len(answer["seeds"])):
        of_it = numbers(change)
        assert of_it.pop(COMPLETED_RATE)["difference"] is None  # in 4 s the server still fills
        for name, row in of_it.items():
            assert row["difference"] == pytest.approx(row["mean"] - ours[name]["mean"], abs=1e-9)
    counts = {change["verdict"]: change["num_seeds"] for change in answer["changes"]}
    assert (answer["server"]["num_seeds"], counts[BETTER], counts[NO_GAIN_AT_FIRST]) == (4, 4, 3)


def test_a_change_that_fails_has_no_verdict(mended):
    code, answer = mended(3000, "--seeds", "1", "gpu=l4")
    assert answer["preempts"]
    assert code == 1  # one seed separates nothing
    assert "vLLM does not start" in answer["failed"]["--num-gpu-blocks-override 4500"]
    assert all("4500" not in change["change"] for change in answer["changes"])


def test_fewer_sequences_are_as_many_as_the_pool_holds():
    """20 sequences hold 80% of the pool, so that it holds 25."""
    runs = [
        {"batch": {"mean_per_iteration": 20.0}, "memory": {"token_states": {"per_iteration": 0.8}}}
    ]
    assert Tried(NONE, runs).num_held == pytest.approx(25)
    server = served(f"{SERVER} 2000", ("gpu=h100-80gb",)).server
    names = [change.name for change in changes_of(server, 25.0)]
    assert names[:4] == [f"--max-num-seqs {count}" for count in (25, 21, 18, 12)]


@pytest.mark.parametrize(("release", "has_own"), [("0.19", False), ("0.28", True), ("0.33", True)])
def test_a_watermark_is_none_of_vllms_own_options(release, has_own):
    """Newer releases have one, which rounds the same share down."""
    command = f"{SERVER} 2000 --max-model-len 8192"
    server = served(command, ("gpu=h100-80gb", f"release={release}")).server
    [watermark] = (of for of in changes_of(server, 25.0) if "policy.watermark=0.05" in of.words)
    assert not watermark.is_proposed
    assert (
        ("--watermark" in watermark.note) == has_own == (not watermark.note.startswith(NO_OPTION))
    )


def test_a_server_that_preempts_nothing_needs_no_change(testbed, mended):
    code, answer = mended(20000, "--seeds", "1")
    assert (code, answer["changes"], answer["preempts"]) == (0, [], False)
    run = testbed("run", "--from-vllm", f"{SERVER} 20000 --max-model-len 8192", *LOAD, "--json")
    completed = json.loads(run[1])["summary"]["while_arriving"][COMPLETED]
    assert numbers(answer["server"])["req/s, 2nd half"]["mean"] == completed


def test_a_server_that_cannot_run_is_refused(testbed):
    odd = f"{SERVER} 2000 --tensor-parallel-size 3"
    assert " --tensor-parallel-size 3: " in testbed.no("mend", odd, "gpu=h100-80gb")
    too_long = testbed("mend", f"{SERVER} 1500 --max-model-len 1000", *LOAD, "--seeds", "1")
    assert (too_long[0], too_long[1]) == (2, "")
    assert "trace: every request is longer" in too_long[2].splitlines()[-1]
    assert "--max-model-len" in too_long[2].splitlines()[-1]
    of_sglang = testbed.refused("mend", "sglang serve --model-path m", "gpu=h100-80gb")
    assert "vLLM alone (testbed run --from-sglang" in of_sglang
    seeded = testbed.refused("mend", f"{SERVER} 1500", "gpu=h100-80gb", "seed=3")
    assert "--seeds" in seeded


@pytest.mark.parametrize(
    ("server", "tokens"),
    [
        (SERVER, 944),
        (SERVER.replace("meta-llama/Llama-3.1-8B-Instruct", "google/gemma-3-4b-it"), 128),
    ],
)
def test_a_pool_that_holds_no_request_is_to_be_larger(testbed, server, tokens):
    small = f"{server} 60 --max-model-len 8192"
    mended = testbed("mend", small, *LOAD, "--seeds", "1")[2].splitlines()[-1]
    printed = testbed("run", "--from-vllm", small, *LOAD)[1]
    for text in (mended, " ".join(re.sub("│", " ", printed).split())):
        assert f"the pool has {tokens} tokens: give it more blocks or memory" in text
        assert "raise --max-model-len" not in text


def test_an_slo_is_the_goal(testbed, mended):
    """A change that is worse on the first seeds runs with no more."""
    words = ("slo.ttft_s=0.5", "--seeds", "1")
    of_slo = mended(1000, "slo.ttft_s=0.5", "--seeds", "4", "arrivals.duration_s=2")[1]
    counts = {change["verdict"]: change["num_seeds"] for change in of_slo["changes"]}
    assert (counts[WORSE_AT_FIRST], counts[BETTER]) == (3, 4)
    assert of_slo["goal"] == GOODPUT == of_slo["server"]["numbers"][0]["quantity"]
    assert {INSIDE, PREEMPTIONS} <= set(numbers(of_slo["server"]))
    by_preemptions = mended(20000, *words, "--by", "preemptions", "arrivals.duration_s=1")[1]
    assert by_preemptions["goal"] == PREEMPTIONS
    assert set(numbers(by_preemptions["server"])) == set(numbers(of_slo["server"]))
    line = ("mend", f"{SERVER} 2000", *LOAD)
    assert ": --by goodput: " in testbed.refused(*line, "--by", "goodput")
    assert ": --by speed: " in testbed.refused(*line, "--by", "speed")


def summary(preemptions, latency_s, goodput=1.0, costs="a", rejected=0, ttft_s=1.0, longer=0.0):
    """The part of an hour's run that a verdict reads."""
    return {
        "run": {"cost": f"auto_cost ({costs})", "cost_error": "small"},
        "requests": {"arrived": 1000, "rejected": rejected, "finished": 1000},
        "preemptions": {"swap": 0, "recompute": preemptions},
        "simulated_s": 3600.0,
        "e2e_s": {"mean": latency_s},
        "ttft_s": {"p99": ttft_s},
        "tpot_s": {"p99": 0.1},
        "while_arriving": {COMPLETED: 2.0, LAST_ARRIVAL: 3000.0, LONGER: longer},
        "filling_s": latency_s / 2,
        "slo": {"share_inside": goodput / 2, "goodput_requests_per_s": goodput},
    }


def tried(*runs, **more):
    return Tried(Change("x"), [summary(*run, **more) for run in runs])


AS_IT_IS = tried((100, 5.0), (110, 5.1), (120, 5.2))
FEWER_AND_LATER = tried((0, 8.0, 0.5), (0, 8.1, 0.51), (0, 8.3, 0.52))


@pytest.mark.parametrize(
    ("change", "goal", "verdict"),
    [
        pytest.param(tried((1, 4.0), (2, 4.1), (3, 4.2)), "latency", BETTER, id="faster"),
        pytest.param(FEWER_AND_LATER, "latency", WORSE, id="later"),
        pytest.param(tried((1, 4.95), (2, 5.05), (3, 5.15)), "latency", LITTLE, id="by 1%"),
        pytest.param(
            tried((1, 5.05), (2, 5.15), (3, 5.25)), "latency", LITTLE_WORSE, id="later 1%"
        ),
        pytest.param(FEWER_AND_LATER, "goodput", WORSE, id="less inside"),
        pytest.param(FEWER_AND_LATER, "share", WORSE, id="a smaller share"),
        pytest.param(FEWER_AND_LATER, "preemptions", BETTER, id="no preemptions"),
        pytest.param(
            tried((0, 8.0, 1.5), (0, 8.1, 1.51), (0, 8.3, 1.52)), "goodput", BETTER, id="goodput"
        ),
        pytest.param(tried((0, 5.0), (300, 5.1), (80, 5.2)), "preemptions", UNKNOWN, id="spread"),
        pytest.param(tried((0, 3.0), (3, 9.1), (8, 4.0)), "latency", UNKNOWN, id="scattered"),
        pytest.param(AS_IT_IS, "latency", EQUAL, id="the same runs"),
        pytest.param(tried((0, 1.0), (0, 1.0), (0, 1.0), rejected=1), "latency", WORSE, id="no"),
        pytest.param(tried((1, 1.0), (1, 1.0), costs="b"), "latency", OTHER_COSTS, id="costs"),
    ],
)
def test_verdicts_follow_from_the_differences(change, goal, verdict):
    assert verdicts([change], AS_IT_IS, GOALS[goal])[0].word == verdict


def test_verdicts_are_corrected_for_their_number():
    faster = tried((100, 4.75), (110, 4.95), (120, 5.0))
    scattered = tried((0, 3.0), (3, 9.1), (8, 4.0))
    [alone] = verdicts([faster], AS_IT_IS, GOALS["latency"])
    several = verdicts([scattered, faster, AS_IT_IS, scattered], AS_IT_IS, GOALS["latency"])
    assert alone.word == BETTER
    assert [verdict.word for verdict in several] == [UNKNOWN, UNKNOWN, EQUAL, UNKNOWN]
    assert several[1].p_value == pytest.approx(3 * alone.p_value)
    assert several[2].p_value is None


FIRST = (
    pytest.param(tried((0, 8.0), (0, 8.1)), WORSE_AT_FIRST, id="later on each"),
    pytest.param(tried((0, 8.0), (0, 5.1)), None, id="no preemption, later on one"),
    pytest.param(tried((9, 4.99), (0, 5.3)), NO_GAIN_AT_FIRST, id="less than 2% on each"),
    pytest.param(tried((9, 4.8), (9, 9.9)), None, id="4% on one"),
    pytest.param(tried((100, 5.0), (110, 5.1)), NO_GAIN_AT_FIRST, id="the same runs"),
    pytest.param(tried((0, 1.0), (0, 1.0), rejected=1), WORSE, id="rejects"),
)


@pytest.mark.parametrize(("change", "word"), FIRST)
def test_the_first_seeds_leave_out_what_they_keep_from_being_the_best(change, word):
    assert verdict_at_first(change, AS_IT_IS, GOALS["latency"]) == word


@pytest.mark.parametrize("goal", ["latency", "preemptions"])
def test_a_change_of_nothing_runs_on_if_only_later_seeds_preempt(goal):
    server = tried((0, 5.0), (0, 5.1), (0, 5.05), (90, 9.0), (80, 8.5))
    for first in tried((0, 5.0), (0, 5.1)), tried((0, 5.2), (0, 5.0)):
        assert verdict_at_first(first, server, GOALS[goal]) is None


def test_what_the_first_seeds_leave_out_makes_no_other_verdict_bolder():
    faster, later = tried((100, 4.75), (110, 4.95), (120, 5.0)), tried((100, 5.3), (110, 5.5))
    whole = tried((100, 5.3), (110, 5.5), (120, 5.2))
    [of_whole, _] = verdicts([faster, whole], AS_IT_IS, GOALS["latency"])
    [of_first, left_out] = verdicts([faster, later], AS_IT_IS, GOALS["latency"])
    assert (left_out.word, left_out.p_value) == (WORSE_AT_FIRST, None)
    assert of_first.p_value >= of_whole.p_value
    found = mending(("faster", "", faster), ("later", "", later))
    assert (found.num_tested, [of.change.name for of in found.left_out]) == (2, ["later"])
    assert any(line.startswith("first seeds: every change ran with 2,") for line in lines_of(found))
    assert found.difference(found.left_out[0], PREEMPTIONS).num_values == 2


def test_the_interval_of_a_difference_is_that_of_its_verdict():
    """Which includes zero, though that of one test alone does not."""
    faster = tried((100, 4.75), (110, 4.95), (120, 5.0))
    scattered = tried((0, 3.0), (3, 9.1), (8, 4.0))
    by_name = ("faster", "", faster), ("one", "", scattered), ("other", "", scattered)
    alone, several = mending(by_name[0]), mending(*by_name)
    number = several.goal.number
    [one], shown = alone.tried, several.difference(several.tried[0], number)
    assert alone.difference(one, number) == one.less(number, AS_IT_IS)
    assert (alone.verdicts[one.change].word, shown.includes_zero) == (BETTER, True)
    assert str(shown) in next(lines_of_differences(several))
    assert several.difference(one, PREEMPTIONS) == one.less(PREEMPTIONS, AS_IT_IS)


def lines_of_differences(mending):
    return (" ".join(row) for row in differences_of(mending))


def test_the_goal_is_no_loss_without_a_verdict_against_it():
    """At 5% alone it is worse, but not among three changes."""
    later = tried((100, 5.25), (110, 5.25), (120, 5.4))
    scattered = tried((0, 3.0), (3, 9.1), (8, 4.0))
    [alone] = verdicts([later], AS_IT_IS, GOALS["latency"])
    among, *_ = verdicts([later, scattered, scattered], AS_IT_IS, GOALS["latency"])
    assert (alone.word, alone.losses) == (WORSE, ("latency, s",))
    assert (among.word, among.losses) == (UNKNOWN, ())


def mending(*changes, goal="latency"):
    """AS_IT_IS beside changes of these names and runs."""
    named = [
        Tried(Change(name, note=note, is_proposed=note != NO_OPTION), runs.summaries)
        for name, note, runs in changes
    ]
    of_changes = zip(named, verdicts(named, AS_IT_IS, GOALS[goal]), strict=True)
    return Mending(
        GOALS[goal], range(3), AS_IT_IS, named, {of.change: of_it for of, of_it in of_changes}, {}
    )


FASTER = tried((50, 4.0), (51, 4.1), (52, 4.2))
NONE_AND_ALIKE = tried((0, 4.9), (0, 5.3), (0, 5.15))


def test_the_best_change_ends_the_preemptions_at_no_cost_if_one_does():
    faster, ending = ("faster", "", FASTER), ("ending", "", NONE_AND_ALIKE)
    assert mending(faster, ending).best.change.name == "ending"
    assert mending(faster, ("later", "", FEWER_AND_LATER)).best.change.name == "faster"
    assert mending(("later", "", FEWER_AND_LATER)).best is None
    assert mending(("not vLLM's", NO_OPTION, NONE_AND_ALIKE), faster).best.change.name == "faster"


def test_preemptions_that_are_not_distinguishable_from_none_have_no_cure():
    """76 on one seed, none on the others: no change can be said to have ended them."""
    as_it_is = tried((76, 5.0), (0, 5.1), (0, 5.2))
    alike = Tried(Change("alike"), tried((0, 5.1), (0, 5.0), (0, 5.2)).summaries)
    found = Mending(
        GOALS["latency"], range(3), as_it_is, [alike], {alike.change: Verdict(UNKNOWN, 1.0)}, {}
    )
    assert (found.best, found.fewest) == (None, alike)
    assert any("fewest preemptions seen: alike, 0 of " in line for line in lines_of(found))
    assert mending(("alike", "", NONE_AND_ALIKE)).best is not None


@pytest.mark.parametrize(("left", "best"), [(76, None), (0, "faster")])
def test_a_best_change_leaves_no_preemptions_that_are_not_distinguishable_from_none(left, best):
    as_it_is = tried((76, 5.0), (0, 5.1), (0, 5.2))
    faster = Tried(Change("faster"), tried((left, 4.0), (0, 4.1), (0, 4.2)).summaries)
    of_changes = {faster.change: Verdict(BETTER, 0.01, losses=("TTFT p99, s",))}
    found = Mending(GOALS["latency"], range(3), as_it_is, [faster], of_changes, {})
    assert (None if found.best is None else found.best.change.name) == best
    assert any("faster betters latency, s and leaves" in of for of in lines_of(found)) == bool(left)


def test_rejections_stand_before_the_best_change():
    """The server's, and those of a change if it rejects another number."""
    alike, fewer = (tried((100, 5.0), (110, 5.1), rejected=count) for count in (3, 0))
    changes = [Tried(Change("alike"), alike.summaries), Tried(Change("fewer"), fewer.summaries)]
    of_changes = {of.change: Verdict(UNKNOWN, 1.0) for of in changes}
    server = Tried(NONE, alike.summaries)
    lines = [*lines_of(Mending(GOALS["latency"], range(2), server, changes, of_changes, {}))]
    rejections = [line for line in lines if "requests rejected" in line]
    assert [line.partition(",")[0] for line in rejections] == [
        "none: 6 of 2000 requests rejected",
        "fewer: 0 of 2000 requests rejected",
    ]
    assert lines.index(rejections[0]) < next(
        i for i, of in enumerate(lines) if "none of the options tried" in of
    )


def test_a_server_with_a_given_pool_is_tried_with_the_one_it_computes():
    def names(blocks):
        of = served(f"{SERVER} {blocks}", ("gpu=h100-80gb",))
        own = own_blocks(of, ("gpu=h100-80gb",))
        return own, [change.words for change in changes_of(of.server, 25.0, own)]

    own, words = names(2000)
    plain = served(SERVER.rpartition(" ")[0], ("gpu=h100-80gb",)).server
    assert own == plain.pool.num_blocks > 2000
    assert (f"server.num_blocks={own}",) in words
    assert (f"server.num_blocks={own}",) not in names(own)[1]


@pytest.mark.parametrize(
    ("given", "larger"), [(0.8, ["0.85", "0.9", "0.95", "0.97"]), (0.9, ["0.95", "0.97"])]
)
def test_a_server_is_tried_with_larger_shares_of_the_gpu(given, larger):
    option = "--gpu-memory-utilization"
    of = served(f"{SERVER.rpartition(' ')[0]} {option} {given}", ("gpu=h100-80gb",))
    names = [change.name for change in changes_of(of.server, 25.0)]
    assert [name for name in names if option in name] == [f"{option} {share}" for share in larger]


@pytest.mark.parametrize(
    ("gpu", "release", "proposed"),
    [
        ("h200", "0.19", ["0.95", "0.97"]),
        ("l40s", "0.19", []),  # 0.95 leaves 2.2 GiB: 0.5 of context, up to 1.9 of graphs
        ("l40s", "0.33", ["0.95", "0.97"]),  # its graphs are a part of the share
    ],
)
def test_a_share_that_may_not_start_is_not_proposed(gpu, release, proposed):
    option = "--gpu-memory-utilization"
    command = f"{SERVER.rpartition(' ')[0]} --max-model-len 8192"
    server = served(command, (f"gpu={gpu}", f"release={release}")).server
    found = [of for of in changes_of(server, 25.0) if option in of.name]
    assert [of.name.split()[-1] for of in found] == ["0.95", "0.97"]
    assert [of.name.split()[-1] for of in found if of.is_proposed] == proposed


@pytest.mark.parametrize(("words", "count"), [("", 1), (" --kv-cache-dtype fp8", 0)])
def test_a_cache_of_rounded_values_is_tried_and_not_proposed(words, count):
    server = served(f"{SERVER} 2000{words}", ("gpu=h100-80gb",)).server
    found = [of for of in changes_of(server, 25.0) if of.name == "--kv-cache-dtype fp8"]
    assert len(found) == count
    assert not any(of.is_proposed for of in found)


def test_a_smaller_cache_in_a_given_number_of_blocks_holds_no_more_tokens():
    def blocks_and_note(command):
        of_fp8 = served(f"{command} --kv-cache-dtype fp8", ("gpu=h100-80gb",)).server
        changes = changes_of(served(command, ("gpu=h100-80gb",)).server, 25.0)
        [note] = (of.note for of in changes if of.name == "--kv-cache-dtype fp8")
        return of_fp8.pool.num_blocks, note

    blocks, note = blocks_and_note(f"{SERVER} 2000")
    assert (blocks, "no more tokens" in note) == (2000, True)
    blocks, note = blocks_and_note(SERVER.rpartition(" ")[0])
    assert (blocks > 2000, "no more tokens" in note) == (True, False)


def test_the_best_is_of_those_told_apart_if_another_has_a_better_mean():
    """Faster in the mean, but not distinguishable: as 3 s, 1 s and 5 s are from 5 s."""
    faster, scattered = (
        ("faster", "", FASTER),
        ("scattered", "", tried((9, 3.0), (9, 1.0), (9, 5.0))),
    )
    found = mending(faster, scattered)
    assert found.best.change.name == "faster"
    assert [tried.change.name for tried in found.rivals] == ["scattered"]
    [line] = [
        line for line in lines_of(found) if line.startswith("best of those told apart: faster")
    ]
    assert "as good or better may be scattered (" in line
    assert [row[1] for row in rows_of(found)] == ["", BETTER, UNKNOWN]
    assert mending(faster).rivals == []
    assert mending(faster, ("later", "", FEWER_AND_LATER)).rivals == []
    assert mending(faster, ("not vLLM's", NO_OPTION, scattered[2])).rivals == []


def test_a_change_not_told_apart_is_best_for_its_preemptions_alone():
    faster = ("scattered", "", tried((9, 3.0), (9, 1.0), (9, 5.0)))
    lines = [*lines_of(mending(("ending", "", NONE_AND_ALIKE), faster))]
    assert any(line.startswith("best without preemptions: ending") for line in lines)


def test_the_best_change_has_the_first_row_though_another_betters_the_goal():
    found = mending(("faster", "", FASTER), ("ending", "", NONE_AND_ALIKE))
    assert found.tried[0].change.name == "faster"
    assert [row[0] for row in rows_of(found)] == ["none", "ending", "faster"]
    assert [row[0] for row in differences_of(found)] == ["ending", "faster"]


COSTLY = Tried(  # a second faster than FASTER, and its first tokens come 0.6 s later
    Change("x"),
    [
        summary(9, *run)
        for run in ((3.0, 1, "a", 0, 1.5), (3.1, 1, "a", 0, 1.6), (3.2, 1, "a", 0, 1.7))
    ],
)


def test_the_change_that_betters_the_goal_most_is_best_whatever_it_makes_worse():
    found = mending(("costly", "", COSTLY), ("faster", "", FASTER))
    assert (found.best.change.name, found.best_harmless.change.name) == ("costly", "faster")
    [line] = [line for line in lines_of(found) if line.startswith("best: costly")]
    assert "worse TTFT p99 by 0.60" in line
    assert "best that makes nothing worse: faster (" in line
    alone = mending(("faster", "", FASTER))
    assert (alone.best.change.name, alone.best_harmless) == ("faster", None)


def test_a_change_that_ends_the_preemptions_and_worsens_nothing_comes_before_any_gain():
    costly, ending = ("costly", "", COSTLY), ("ending", "", NONE_AND_ALIKE)
    found = mending(costly, ending)
    assert (found.best.change.name, found.rivals) == ("ending", [])


def test_a_rival_of_the_largest_gain_may_make_something_worse():
    late = [summary(9, latency_s, ttft_s=1.5) for latency_s in (3.0, 1.0, 5.0)]
    found = mending(("faster", "", FASTER), ("late", "", Tried(Change("x"), late)))
    assert [tried.change.name for tried in found.rivals] == ["late"]
    [line] = [line for line in lines_of(found) if line.startswith("best of those told apart")]
    assert re.search(r"as good or better may be late \(.*; worse TTFT p99 by ", line)


LATE_FIRST = Tried(
    Change("x"),
    [
        summary(0, *run)
        for run in ((4.9, 1, "a", 0, 1.5), (5.3, 1, "a", 0, 1.6), (5.15, 1, "a", 0, 1.7))
    ],
)


def test_what_a_change_makes_worse_is_said_and_is_no_cure():
    """No preemption, and a latency that is not distinguishable, but the first token 0.6 s later."""
    late, faster = ("late", "", LATE_FIRST), ("faster", "", FASTER)
    of_late = mending(late, faster).verdicts[Change("late")]
    assert (of_late.word, of_late.losses) == (UNKNOWN, ("TTFT p99, s",))
    assert mending(late).best is None
    assert mending(late, faster).best.change.name == "faster"
    assert mending(("alike", "", NONE_AND_ALIKE), late).best.change.name == "alike"
    [line] = [line for line in lines_of(mending(late)) if line.startswith("without any preemption")]
    assert "late (not distinguishable; worse TTFT p99 by 0.60 ± 0.25" in line


STEADY = ("steady", "", FASTER)
BEHIND = {"served_requests_per_s": 1.0, "offered_requests_per_s": 2.0}
OVERLOADED = Tried(Change("x"), [{**of, "overload": BEHIND} for of in FASTER.summaries])
OVERLOADED_AND_LATER = Tried(
    Change("x"), [{**of, "overload": BEHIND} for of in FEWER_AND_LATER.summaries]
)
AT_TIMES = Tried(Change("x"), [*OVERLOADED.summaries[:1], *FASTER.summaries[1:]])
FILLING = tried((50, 4.0), (51, 4.1), (52, 4.2), longer=0.2)
SHORT = tried((50, 400.0), (51, 410.0), (52, 420.0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(OVERLOADED, "overloaded on 3 of 3 seeds", id="behind"),
        pytest.param(FILLING, "20.0% of the answers take longer than the first half", id="fills"),
    ],
)
def test_verdicts_on_servers_that_do_not_settle_hold_for_their_window(change, words):
    assert window_remarks(mending(STEADY)) == []
    remarks = window_remarks(mending(STEADY, ("x", "", change)))
    assert any(line.startswith(f"x: {words}") for line in remarks)
    assert remarks[-1] == OF_WINDOW
    lines = [*lines_of(mending(STEADY, ("x", "", change)))]
    assert lines.index(OF_WINDOW) < lines.index(next(of for of in lines if of.startswith("best")))


@pytest.mark.parametrize(("longer", "compared"), [(0.0, True), (0.2, False)])
def test_completions_of_a_server_that_still_fills_are_not_compared(longer, compared):
    """A change may end its answers behind the last arrival, be it the faster one."""

    def completing(change, rate):
        window = {COMPLETED: rate, LAST_ARRIVAL: 3000.0, LONGER: longer}
        runs = [{**of, "overload": BEHIND, "while_arriving": window} for of in change.summaries]
        return replace(change, summaries=runs)

    server, change = completing(AS_IT_IS, 1.65), completing(FASTER, 0.91)
    [verdict] = verdicts([change], server, GOALS["latency"])
    assert verdict.word == BETTER
    assert verdict.losses == ((COMPLETED_RATE,) if compared else ())
    assert (change.less(COMPLETED_RATE, server) is not None) == compared
    of_it = Mending(GOALS["latency"], range(3), server, [change], {change.change: verdict}, {})
    assert (NOT_COMPARED in window_remarks(of_it)) != compared


def test_a_seed_that_falls_behind_hides_no_other_that_fills():
    first, *others = tried((50, 4.0), (51, 4.1), (52, 4.2), longer=0.2).summaries
    behind = {**first, "overload": BEHIND, "while_arriving": {**first["while_arriving"], LONGER: 1}}
    remarks = window_remarks(mending(("x", "", Tried(Change("x"), [behind, *others]))))
    assert any(line.startswith("x: 20.0% of the answers") for line in remarks)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(FASTER, "the server keeps up with and without it", id="steady"),
        pytest.param(FILLING, "too short to tell whether the server keeps up", id="fills"),
        pytest.param(AT_TIMES, "the server falls behind with it on 1 of 3 seeds", id="at times"),
        pytest.param(
            OVERLOADED, "overload begins: the server falls behind on 0 of 3 seeds", id="always"
        ),
    ],
)
def test_a_server_that_still_fills_is_not_said_to_keep_up(change, words):
    found = mending(("x", "", change))
    [best] = [line for line in lines_of(found) if "best: x " in line]
    assert words in best
    assert ("keeps up with" in best) == (change is FASTER)


def test_changes_that_keep_up_are_named_beside_an_overloaded_server():
    behind = Tried(NONE, [{**of, "overload": BEHIND} for of in AS_IT_IS.summaries])
    changes = Change("slow"), Change("steady")
    of_changes = [replace(OVERLOADED, change=changes[0]), replace(FASTER, change=changes[1])]
    found = verdicts(of_changes, behind, GOALS["latency"])
    of_all = dict(zip(changes, found, strict=True))
    lines = [*lines_of(Mending(GOALS["latency"], range(3), behind, of_changes, of_all, {}))]
    [line] = [line for line in lines if line.startswith("keeping up with the load")]
    assert line.endswith(": steady (better)")
    assert any("less load, or steady, or more GPUs" in line for line in lines)
    of_slow = Mending(GOALS["latency"], range(3), behind, of_changes[:1], of_all, {})
    [best] = [line for line in lines_of(of_slow) if "best: slow " in line]
    assert best.startswith("overload stays: the server falls behind on 3 of 3 seeds, with the best")
    assert not any(line.startswith("keeping up") for line in lines_of(mending(STEADY)))


def test_a_worse_change_that_falls_behind_leaves_the_verdicts_as_they_are():
    [line] = window_remarks(mending(STEADY, ("x", "", OVERLOADED_AND_LATER)))
    assert "overloaded" in line


def test_runs_that_fill_for_most_of_their_arrivals_are_short():
    slow = Tried(NONE, SHORT.summaries)
    [line, of_window] = window_remarks(Mending(GOALS["latency"], range(3), slow, (), {}, {}))
    assert line.startswith("short runs: none fills for 7% of the arrivals")
    assert of_window == OF_WINDOW


def test_preemptions_an_hour_are_of_the_arrivals_without_the_drain():
    """330 preemptions in three runs with 50 minutes of arrivals in an hour."""
    assert AS_IT_IS.mean(PREEMPTIONS).mean == pytest.approx(110 * 3600 / 3000)


def test_the_errors_of_the_costs_stand_beside_differences():
    lines = [*lines_of(mending(STEADY))]
    assert lines.count(OF_WORKLOAD) == 1
    assert OF_WORKLOAD not in lines_of(Mending(GOALS["latency"], range(3), AS_IT_IS, (), {}, {}))


def test_a_server_without_preemptions_says_how_few_it_has():
    few = Mending(GOALS["latency"], range(3), NONE_AND_ALIKE, (), {}, {})
    assert "less than 1.2 times an hour" in [*lines_of(few)][-1]  # three in 9,000 s
    fewer = Mending(GOALS["latency"], range(12), tried(*[(0, 5.0)] * 12), (), {}, {})
    assert "less than 0.3 times an hour" in [*lines_of(fewer)][-1]


LIMITED = "vllm serve Qwen/Qwen3-8B --max-model-len 2048 --max-num-seqs 8"
SHORT_LOAD = (
    "gpu=h200",
    "trace=guidellm",
    "trace.prompt_tokens=100",
    "trace.output_tokens=300",
    "arrivals.rate=7",
    "arrivals.duration_s=20",
)


def test_a_server_that_falls_behind_at_its_limit_of_sequences_is_tried_with_more(testbed):
    """150 blocks preempt; the computed pool falls behind at the limit, and twice this keeps up."""
    line = ("mend", f"{LIMITED} --num-gpu-blocks-override 150", *SHORT_LOAD, "--seeds", "1")
    answer = json.loads(testbed(*line, "--json", "--quiet")[1])
    behind = {tuple(of["words"]): of["num_overloaded"] for of in answer["changes"]}
    [own] = (of["words"] for of in answer["changes"] if of["change"].endswith("blocks)"))
    more = "scheduler.max_num_seqs=16"
    larger = served(f"{LIMITED.replace('seqs 8', 'seqs 16')}", ("gpu=h200",)).server
    assert (behind[(*own,)], behind[(more,)]) == (1, 1)
    assert behind[(f"server.num_blocks={larger.pool.num_blocks}", more)] == 0


def test_a_server_that_preempts_nothing_at_its_limit_of_sequences_is_told_so(testbed):
    code, printed, _ = testbed("mend", LIMITED, *SHORT_LOAD, "--seeds", "1")
    assert code == 0
    assert "--max-num-seqs 16" in printed
    assert "nothing is to mend" not in printed
