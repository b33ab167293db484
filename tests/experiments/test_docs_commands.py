"""Every command and Python example in README and docs: run as in a fresh clone, or only read if it
needs more.
"""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import MissingArgumentError

from testbed.experiments.cli.app import application
from testbed.experiments.cli.reproduce import chosen
from testbed.experiments.runs.compose import configured

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    ".github/CONTRIBUTING.md",
    *sorted(
        str(path.relative_to(ROOT))
        for folder in ("testbed", "kernels", "experiments", "traces")
        for path in (ROOT / folder).rglob("*.md")
        if not path.is_relative_to(ROOT / "kernels" / "results")
    ),
]
NEEDS = re.compile(r"\s+# (needs|takes) ")
SEVERAL = re.compile(r"[\w.]+=[\w.]+(,[\w.:]+)+")
# Commands that neither need other lines nor are needed by them
ALONE = ("check", "capacity", "hits")
LONG = "arrivals.duration_s="  # the option by which the quick test makes simulations short
INPUTS_LISTED = "experiments/REPRODUCING.md"  # its table of inputs says where the files are had
SKIPPED = (
    "python ",
    "pip ",
    "pytest",
    "python3 -m venv",
    "git ",
    "vllm ",
    "mutmut ",
    "mkdocs ",
    "guidellm ",
)


def lines_of(page):
    """Command lines of a page's shell blocks; a first line `# needs ...` speaks for its whole
    block.
    """
    always = "  # needs inputs" if page == INPUTS_LISTED else ""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        note = f"  {lines[0]}" if lines[0].startswith(("# needs ", "# takes ")) else always
        yield from (line + note for line in lines if line and not line.startswith(("#", *SKIPPED)))


def inline(page):
    """Commands in the running text, with arguments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    commands = (
        " ".join(code.split()) for code in re.findall(r"`(testbed [a-z][^`]* [^`]+)`", text)
    )
    return [
        code for code in commands if "..." not in code and not re.search(r"\b[A-Z]{3,}\b", code)
    ]


RUN = [(page, [line for line in lines_of(page) if not NEEDS.search(line)]) for page in PAGES]
READ = [(page, line) for page in PAGES for line in lines_of(page) if NEEDS.search(line)]
READ += [(page, line) for page in PAGES for line in inline(page)]


SLOWER = "experiments/ACCURACY.md"  # test_vllm_profile.py runs its commands
QUESTIONS = "experiments/QUESTIONS.md"  # its simulations take long, even in the quick test


def clone(folder):
    """The files that a command may name, and no others: those of the project."""
    (folder / "experiments").symlink_to(ROOT / "experiments")


def two_points(options):
    """The first axis has its last two values left, each other one its last."""
    axes = [word for word in options if SEVERAL.fullmatch(word)]
    for word in axes:
        name, _, values = word.partition("=")
        last = values.split(",")[-2:] if word == axes[0] else values.split(",")[-1:]
        options = [f"{name}={','.join(last)}" if option == word else option for option in options]
    return options


def with_option(options, name, value):
    """The options, this one with the value."""
    if name not in options:
        return [*options, name, value]
    place = options.index(name)
    return [*options[: place + 1], value, *options[place + 2 :]]


def short(words):
    """The same command with little to do, in this process: little time, few values; an option's
    last value counts.
    """
    command, *options = words
    options = [word for word in options if word != "hydra/launcher=joblib"]
    if command == "check":
        return [*words, "--examples", "1", "--slots", "64", "--max-len", "32"]  # one pool
    if "-m" in options or command == "plan":
        options = two_points(options)
    untimed = {f"arrivals={name}" for name in ("replay", "sessions", "closed_loop")}
    timed = not untimed.intersection(options)
    if "--seeds" in options:
        options = with_option(options, "--seeds", "2")
    elif command == "capacity":
        options = with_option(with_option(options, "--seeds", "1"), "--precision", "1")
    if command in ("run", "capacity", "plan", "hits") and timed:
        seconds = 120 if is_named(options) else 5
        options = [word for word in options if not word.startswith(LONG)] + [f"{LONG}{seconds}"]
    return [
        command,
        *options,
        *(["outputs=summary"] if command == "run" and not is_named(options) else []),
    ]


def check_arguments(words):
    """The command takes these words, and each of its figures exists."""
    _, bound, _ = application.parse_args(words, exit_on_error=False, print_error=False)
    if words[0] == "reproduce":
        chosen(bound.args)


def is_named(options):
    """True if a run has a folder of its own, which other lines read."""
    return any(word.startswith("hydra.run.dir") for word in options)


FIRST = {
    tuple(short(shlex.split(line)[1:])): page for page, lines in reversed(RUN) for line in lines
}


@pytest.mark.usefixtures("four_requests")
@pytest.mark.parametrize(
    ("page", "lines"),
    [
        pytest.param(page, lines, id=page, marks=[pytest.mark.slow] if page == QUESTIONS else [])
        for page, lines in RUN
        if lines
    ],
)
def test_documented_commands_succeed(testbed, tmp_path, page, lines):
    clone(tmp_path)
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "cp":
            shutil.copy(*words[1:])
            continue
        assert words[0] == "testbed", line
        if words[1] == "reproduce" or page == SLOWER:  # another test runs it
            check_arguments(words[1:])
            continue
        if words[1] in ALONE and FIRST[tuple(short(words[1:]))] != page:
            continue  # an earlier page has it too
        code, _, error = testbed(*short(words[1:]))
        assert code == 0, f"{page}: {line}\n{error}"


@pytest.mark.parametrize(
    ("page", "line"), READ, ids=[f"{page}: {line[:60]}" for page, line in READ]
)
def test_documented_commands_with_needs_are_valid(page, line):
    """Their options exist, and a `run` without files of the reader's composes."""
    words = shlex.split(line, comments=True)
    assert words[0] == "testbed", line
    try:
        check_arguments(words[1:])
    except MissingArgumentError:  # running text may name a command without its arguments
        assert not NEEDS.search(line), line
    is_plain = "-m" not in words and not any(word.startswith("--from-") for word in words)
    if words[1] == "run" and is_plain and not any(".path=" in word for word in words):
        configured(tuple(word for word in words[2:] if not word.startswith("-")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "lines"),
    [page_lines for page_lines in RUN if page_lines[1]],
    ids=[page for page, ls in RUN if ls],
)
def test_documented_commands_run_as_written_in_a_clean_clone(tmp_path, page, lines):
    """Unchanged, in a clone of what is committed, each in a process of its own."""
    tree = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, tree], check=True)
    command = f'testbed() {{ "{sys.executable}" -m testbed.experiments.cli.main "$@"; }}\n'
    for line in lines:
        done = subprocess.run(
            ["bash", "-ec", command + line], cwd=tree, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{page}: {line}\n{done.stderr}"


README = (ROOT / "README.md").read_text(encoding="utf-8")
COOKBOOK = (ROOT / "experiments" / "site" / "pages" / "cookbook.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


def test_first_two_readme_commands_install_and_test():
    assert BLOCKS[:2] == [
        "pip install -e . && testbed reproduce fig2 fig13\n",
        'pip install -e ".[test]" && pytest\n',
    ]


def test_ci_runs_the_test_command_of_the_readme():
    assert BLOCKS[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_readme_names_only_existing_files():
    for path in re.findall(
        r"`((?:testbed|tests|experiments|traces|kernels)(?:/[\w./]*)?)`", README
    ):
        assert (ROOT / path).exists(), path


@pytest.fixture
def script(tmp_path, monkeypatch, capsys):
    """Call Python code as a script in an empty folder; what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(code):
        Path("example.py").write_text(code, encoding="utf-8")
        runpy.run_path("example.py", run_name="__main__")
        return capsys.readouterr().out

    return call


def test_the_python_example_runs(script, tmp_path):
    page = ROOT / "experiments" / "site" / "pages" / "api.md"
    [code] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    code = code.replace("1], duration_s=600", "1], duration_s=20, jobs=1")  # no further process
    output = script(code.replace("duration_s=600", "duration_s=20"))
    assert float(output.splitlines()[-1]) > 0.5
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_readme_shows_the_policy_that_it_checks():
    [shown] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    file = ROOT / "experiments" / "examples" / "room_to_grow.py"
    assert shown == file.read_text(encoding="utf-8")
    assert len(shown.splitlines()) < 15


def test_the_cookbook_answers_seven_questions():
    questions = re.findall(r"^## (\d+)\. .*\?$", COOKBOOK, re.MULTILINE)
    assert questions == [str(i) for i in range(1, 8)]
    assert len(re.findall(r"^```(?:bash|python)$", COOKBOOK, re.MULTILINE)) == 8
    assert len(ANSWER.findall(COOKBOOK)) == COOKBOOK.count("```python")


def test_fourteen_questions_have_a_command_or_a_named_absence():
    page = (ROOT / QUESTIONS).read_text(encoding="utf-8")
    _, *answers = re.split(r"^## \d+\. .*\?$", page, flags=re.MULTILINE)
    assert len(answers) == 14
    for answer in answers:
        assert "```bash" in answer or answer.strip().startswith("Absent: ")


SHOWN = re.compile(
    r"^## (\d+)\..*?```bash\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL | re.MULTILINE
)
SECTIONS = re.split(r"^(?=## )", (ROOT / QUESTIONS).read_text(encoding="utf-8"), flags=re.MULTILINE)
ANSWERS = [match.groups() for section in SECTIONS if (match := SHOWN.search(section))]
OF_README = re.compile(r"```bash\n(cp .*?)```\n\n```text\n(.*?)```", re.DOTALL)
ANSWERS += [("readme", *shown) for shown in OF_README.findall(README)]


def is_quick(commands):
    return all(line.startswith("testbed fits") for line in commands.splitlines())


def plain(line):
    """A line of a table without its borders, words apart by one space."""
    return " ".join(re.sub("[│┃]", " ", line).split())


def test_most_questions_show_their_output():
    assert {number for number, *_ in ANSWERS} >= {"readme", *(str(i) for i in range(1, 14))}


@pytest.mark.parametrize(
    ("commands", "shown"),
    [
        pytest.param(
            commands, shown, id=number, marks=[] if is_quick(commands) else [pytest.mark.slow]
        )
        for number, commands, shown in ANSWERS
    ],
)
def test_questions_show_what_their_commands_print(testbed, commands, shown):
    """Every line of the page, in order; `...` stands for what is left out."""
    output = []
    for line in commands.splitlines():
        here = line.replace(" experiments/", f" {ROOT}/experiments/")
        if here.startswith("cp "):
            shutil.copy(*here.split()[1:])
            continue
        code, printed, error = testbed(*shlex.split(here)[1:])
        assert code == 0, error
        output += map(plain, printed.splitlines())
    lines = iter(output)
    for line in map(plain, shown.splitlines()):
        pattern = ".*".join(map(re.escape, line.split("...")))
        assert any(re.fullmatch(pattern, printed) for printed in lines), line


ANSWER = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("answer", ANSWER.findall(COOKBOOK))
def test_python_answers_of_the_cookbook_run(answer, script, tmp_path):
    """As they are pasted beside a clone's files; the page shows what they print."""
    clone(tmp_path)
    code, printed = answer
    assert script(code) == printed
