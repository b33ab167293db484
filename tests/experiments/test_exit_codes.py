"""Exit codes, --quiet and --time-limit of every command, in this process and in one without a
terminal.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
from remedies import options_of_commands
from test_json_answers import LOG, check
from tiny_run import tiny_run

from testbed import experiments
from testbed.experiments.cli import exit_codes, json_answers
from testbed.experiments.cli.commands import COMMANDS
from testbed.experiments.cli.common_options import CommonOptions
from testbed.experiments.plan.json_answer import PlanAnswer
from testbed.experiments.real.engine_fit import EngineFit
from testbed.experiments.sglang_server.answer import SglangFit
from testbed.experiments.vllm_server.answer import Fit

PAGE = Path(experiments.__file__).parent / "cli" / "JSON.md"
SERVER = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
LARGE = "vllm serve meta-llama/Llama-3.3-70B-Instruct"
SGLANG = "sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct"
H100 = "gpu=h100-80gb"
SHORT = ("arrivals.duration_s=5", "arrivals.rate=1")
LOOSE, HOPELESS = "slo.ttft_s=5", "slo.ttft_s=1e-9"
ROUGH = ("--seeds", "1", "--precision", "0.5")
SMALL_CHECK = ("--examples", "3", "--slots", "64", "--max-len", "32")
# A command, whose answer is JSON of this class, and its exit code
ANSWERS = {
    ("list", "policy"): ("Choices", 0),
    ("fits", SERVER, H100): ("Fit", 0),
    ("fits", f"{SERVER} --max-model-len 999999", H100): ("NoAnswer", 1),
    ("fits", LARGE, H100): ("NoAnswer", 1),
    ("fits", "sglang serve --model-path meta-llama/Llama-3.3-70B-Instruct", H100): ("NoAnswer", 1),
    ("fits", SGLANG, H100): ("SglangFit", 0),
    ("fits", "testbed run engine=gpu model=opt-13b", H100): ("EngineFit", 0),
    ("run", *SHORT, "outputs=summary"): ("RunAnswer", 0),
    ("run", "model=opt-175b", "server=a100-40gb-x1"): ("NoAnswer", 1),
    ("run", "-m", "--from-vllm", LARGE, H100, "seed=0,1"): ("NoAnswer", 1),
    ("run", "-m", "policy=paged,contiguous_max", *SHORT, "--seeds", "2"): ("SweepAnswer", 0),
    ("check", "example_policy:Slabs", *SMALL_CHECK): ("CheckAnswer", 0),
    ("check", "broken:Broken", *SMALL_CHECK): ("CheckAnswer", 1),
    ("capacity", LOOSE, *SHORT[:1], *ROUGH): ("CapacityAnswer", 0),
    ("capacity", "policy=paged,contiguous_max", LOOSE, *SHORT[:1], *ROUGH): (
        "ComparedCapacities",
        0,
    ),
    ("capacity", HOPELESS, *SHORT[:1], "--seeds", "1"): ("NoAnswer", 1),
    ("capacity", "--from-vllm", LARGE, H100, LOOSE): ("NoAnswer", 1),
    ("plan", "gpu=a100-40gb", LOOSE, *SHORT, "--seeds", "1"): ("PlanAnswer", 0),
    ("plan", "gpu=a100-40gb", HOPELESS, *SHORT, "--seeds", "1"): ("PlanAnswer", 1),
    ("mend", SERVER, H100, *SHORT, "--seeds", "1"): ("MendAnswer", 0),
    ("mend", LARGE, H100): ("NoAnswer", 1),
    ("hits", "--from-vllm", LARGE, H100, "trace=random"): ("NoAnswer", 1),
    ("hits", "trace=random", "arrivals.rate=1", "arrivals.duration_s=9"): ("HitsAnswer", 0),
    ("compare", "a", "b"): ("ComparisonAnswer", 0),
    ("validate", "log.csv", "model=opt-13b", "--within", "1e9"): ("ValidationAnswer", 0),
    ("validate", "log.csv", "model=opt-13b", "--within", "1e-9"): ("ValidationAnswer", 1),
    ("validate", "log.csv", "--from-vllm", LARGE, H100): ("NoAnswer", 1),
}
KINDS = {  # of other modules
    "Fit": Fit,
    "SglangFit": SglangFit,
    "EngineFit": EngineFit,
    "PlanAnswer": PlanAnswer,
}
# Mistakes in words that each command takes, in the order of the help
WRONG = {
    "run": "run polcy=paged",
    "capacity": "capacity polcy=paged",
    "plan": "plan polcy=paged",
    "mend": "mend vllm",
    "hits": "hits polcy=paged",
    "arena": "arena --jobs 0",
    "serve": "serve polcy=paged",
    "fits": "fits vllm",
    "list": "list polcy",
    "check": "check nowhere:Nothing",
    "bench": "bench --repeats 0",
    "compare": "compare nowhere",
    "report": "report nowhere",
    "show": "show memory nowhere",
    "reproduce": "reproduce fig22",
    "plot": "plot fig2 nowhere",
    "validate": "validate nolog.csv",
    "lockstep": "lockstep vlm",
    "import": "import model nowhere/config.json",
    "calibrate": "calibrate fit memory nowhere",
    "gpu": "gpu bench --nope",
}
BROKEN = """
from testbed.core.slots import Grant
from testbed.memory.paged.paged import Paged


class Broken(Paged):
    calls = 0

    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        self.calls += isinstance(answer, Grant)
        return answer

    def counters(self):
        return {"calls": self.calls}
"""


# A policy that ends the time at a call: no machine is too slow for the limit
LATE = """
import itertools
import signal

from example_policy import Slabs


class Late(Slabs):
    calls = itertools.count(1)

    def __init__(self, pool, last: int = 9):
        super().__init__(pool)
        self.last = last

    def admit(self, seqs, num_tokens):
        if next(self.calls) == self.last:
            signal.raise_signal(signal.SIGALRM)
        return super().admit(seqs, num_tokens)
"""


@pytest.fixture
def late(tmp_path, monkeypatch):
    """The module `late`; a time limit is over if its signal has come. Another test has the clock's
    own signal, in a process.
    """
    (tmp_path / "late.py").write_text(LATE)
    monkeypatch.setattr(CommonOptions, "is_over", True)


@pytest.fixture
def inputs(tmp_path, words):
    """The files that the words name."""
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "broken.py").write_text(BROKEN)
    if words[0] == "compare":
        for name, blocks in (("a", 18), ("b", 30)):
            tiny_run(tmp_path / name, blocks=blocks)


@pytest.mark.usefixtures("four_requests")
@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_quiet_json_is_all_that_is_printed(testbed, inputs, words):
    answer_class, expected = ANSWERS[words]
    code, output, error = testbed(*words, "--json", "--quiet")
    assert code == expected
    answer = json.loads(output)
    check(answer, KINDS.get(answer_class) or getattr(json_answers, answer_class), answer_class)
    assert bool(error) == (answer_class == "NoAnswer")


def test_every_command_that_takes_json_has_an_answer_here():
    taking = {name for name, options in options_of_commands().items() if "--json" in options}
    assert {words[0] for words in ANSWERS} == taking


@pytest.mark.parametrize("command", [name for name in options_of_commands() if name])
def test_a_word_that_a_command_does_not_take_is_one_line(testbed, command):
    code, output, error = testbed(*command.split(), "--no-such-option", "-q")
    assert (code, output) == (exit_codes.BAD_INPUT, "")
    assert error.count("\n") == 1


def test_every_command_has_a_mistake_here():
    assert list(WRONG) == [name for name, _, _ in COMMANDS]


@pytest.mark.parametrize("command", WRONG)
def test_wrong_input_is_one_line_and_no_json(testbed, command):
    code, output, error = testbed(*WRONG[command].split(), "--quiet")
    assert (code, output) == (exit_codes.BAD_INPUT, "")
    assert error.count("\n") == 1


def test_a_server_that_does_not_start_says_why_in_json(testbed):
    words = ("fits", f"{SERVER} --max-model-len 999999", H100)
    _, output, error = testbed(*words, "--json")
    answer = json.loads(output)
    assert answer["kind"] == "does not start"
    assert answer["message"] in error
    assert (answer["key"], answer["value"]) == ("vllm serve: --max-model-len", "999999")


def test_quiet_drops_notes_and_progress_and_keeps_them_in_json(testbed):
    words = ("run", "--from-vllm", SERVER, H100, *SHORT, "outputs=summary")
    _, table, notes = testbed(*words)
    assert "GPU KV cache size" in notes
    assert testbed(*words, "--quiet")[2] == ""
    answer = json.loads(testbed(*words, "--quiet", "--json")[1])
    assert [f"testbed: note: {note}" for note in answer["notes"]] == notes.splitlines()
    assert answer["folder"] in table


def test_a_quiet_sweep_prints_its_table_alone(testbed):
    words = ("run", "-m", "policy=paged,contiguous_max", *SHORT, "outputs=summary")
    assert " done: " in testbed(*words)[1]
    code, table, error = testbed(*words, "--quiet", "--again")
    assert (code, error) == (0, "")
    assert table.startswith("Sweep: 2 points")


@pytest.mark.usefixtures("late")
def test_the_time_limit_ends_a_run_in_order(testbed, tmp_path):
    words = ("run", "policy=late:Late", "arrivals.rate=2", "arrivals.duration_s=30")
    code, output, error = testbed(*words, "--time-limit", "500", "hydra.run.dir=out")
    assert (code, output) == (exit_codes.TIME_LIMIT, "")
    assert re.search(r"ended by --time-limit 500; simulating: [\d,]+ of [\d,]+ requests", error)
    assert {path.name for path in tmp_path.iterdir()} <= {"late.py", "__pycache__"}


@pytest.mark.usefixtures("late")
def test_the_time_limit_of_a_sweep_keeps_the_points_that_were_run(testbed):
    words = ("run", "-m", "policy=late:Late", "arrivals.rate=1", "arrivals.duration_s=2,30")
    code, output, error = testbed(*words, "outputs=summary", "--time-limit=500")
    assert code == exit_codes.TIME_LIMIT
    assert "Sweep: 1 points" in output
    assert "1 of 2 points have been run; the same line continues" in error


@pytest.mark.usefixtures("late")
def test_the_time_limit_of_a_check_says_how_many_histories_held(testbed):
    code, output, error = testbed("check", "late:Late", "last=300", "--time-limit=500")
    assert (code, output) == (exit_codes.TIME_LIMIT, "")
    assert "histories" in error


@pytest.mark.parametrize("limit", ["0", "soon", "nan", ""])
def test_a_time_limit_is_a_number_of_seconds(testbed, limit):
    assert "--time-limit" in testbed.refused("list", "--time-limit", limit)


def test_the_page_lists_the_codes():
    page = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    codes = {int(code) for cell in listed for code in cell.split(",")}
    constants = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert codes == constants


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("fits", f"{SERVER} --max-model-len 999999", H100), 1),
        (("run", "arrivals.duration_s=400000", "--time-limit", "1"), 124),
    ],
    ids=["no", "time limit"],
)
def test_a_process_without_a_terminal_has_the_same_codes(command, tmp_path, words, expected):
    done = subprocess.run(
        [*command, *words, "--json", "--quiet"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == expected
    assert "\x1b" not in done.stdout + done.stderr
    assert bool(done.stdout) == (expected == 1)
    assert done.stdout == "" or json.loads(done.stdout)


SWALLOWED = """
import os, signal, weakref
class Thing: pass
thing = Thing()
reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
del thing
"""
REPLACED = """
import os, signal
text = ""
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt as error:
    text = repr(error)
raise ValueError(text)
"""


@pytest.mark.parametrize("source", [SWALLOWED, REPLACED], ids=["callback", "other error"])
def test_a_termination_that_another_library_loses_ends_the_process(command, tmp_path, source):
    (tmp_path / "losing.py").write_text(
        f"{source}\nfrom testbed.memory.paged.paged import Paged as Losing\n"
    )
    words = ("run", "policy=losing:Losing", "arrivals.duration_s=400000")
    done = subprocess.run(
        [*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (exit_codes.TERMINATED, "")
    assert done.stderr.count("testbed: terminated") == 1
