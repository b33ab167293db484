"""The commands of `testbed` in the order of its help: name, function, and a line about each.

The function is MODULE:NAME in testbed.experiments.cli, or a Cyclopts app if the command is a
group; the line is the first one of its docstring or help. This module imports nothing, so that
`testbed --help` answers at once.
"""

SECTIONS = {
    "Simulate": (
        ("run", "run:app", "Simulate a configuration, or with -m a sweep of several."),
        ("capacity", "capacity:capacity", "Find the highest request rate that meets an SLO."),
        ("plan", "plan:plan", "Find the cheapest deployment that keeps an SLO."),
        ("mend", "mend:mend", "Find the change that betters a vLLM server which preempts."),
        (
            "hits",
            "hits:hits",
            "Print which share of a trace's prompt tokens a prefix cache finds, by cache size.",
        ),
        (
            "arena",
            "arena:arena",
            "Compare policies of any kind on fixed workloads, beside bounds.",
        ),
        ("serve", "serve:serve", "Serve a simulated server behind OpenAI's API, in real time."),
        (
            "fits",
            "fits:fits",
            "Say what a server of vLLM or SGLang, or this project's engine, holds on a GPU.",
        ),
        ("list", "list:list_choices", "List the options of every config group."),
        ("check", "check:check", "Check a plug-in against the contract of its kind."),
        ("bench", "bench:bench", "Measure the speed of the simulator."),
    ),
    "Read results": (
        ("compare", "compare:compare", "Compare finished runs, simulated or on a GPU."),
        ("report", "report:report", "Write one self-contained HTML page of results."),
        ("show", "show:app", "Show the charts, the memory or the timeline of a run."),
    ),
    "Reproduce the paper": (
        ("reproduce", "reproduce:reproduce", "Reproduce figures and tables of the paper."),
        ("plot", "reproduce:plot", "Draw a figure of the paper from its stored table."),
    ),
    "Compare with real servers": (
        ("validate", "validate:app", "Compare the simulation with measurements."),
        (
            "lockstep",
            "lockstep:lockstep",
            "Compare the scheduler of the installed vLLM or SGLang with ours.",
        ),
        ("import", "importing:app", "Convert models, profiles and lengths of others."),
        ("calibrate", "calibrate:app", "Fit unmeasured times to logs or published numbers."),
        ("gpu", "gpu:app", "Measure, check and run on an NVIDIA GPU."),
    ),
}
COMMANDS = tuple(command for section in SECTIONS.values() for command in section)
ABOUT = "A testbed for KV-cache memory management in LLM serving."
WIDTH = max(len(name) for name, _, _ in COMMANDS) + 2


def help_text() -> str:
    """The answer to `testbed --help`."""
    lines = ["Usage: testbed COMMAND ...", "", ABOUT]
    for section, commands in SECTIONS.items():
        lines += ["", f"{section}:"]
        lines += [f"  {name:<{WIDTH}}{about}" for name, _, about in commands]
    lines += [
        "",
        "testbed COMMAND --help explains a command. testbed --version prints the version.",
        "Every command takes -q or --quiet (no progress, no notes), --time-limit S (ends it in",
        "order), and --debug (an error with its traceback).",
        "Exit codes: 0 answered, 1 the answer is no, 2 wrong input, 124 the time limit.",
    ]
    return "\n".join(lines)
