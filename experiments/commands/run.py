"""`testbed run`: one simulation, or with -m a sweep; its help shows every group and every value."""

import re
from argparse import Namespace
from collections.abc import Sequence

from testbed.core.errors import InputError
from testbed.experiments.runs.choice_names import GROUPS, KEYS, names_of

ABOVE = "testbed run [OVERRIDE ...]: one simulation. -m with comma-separated values: a sweep."
BELOW = """hydra.run.dir=DIR names the run folder; the default is runs/<hash of config and inputs>.
testbed run -m policy=contiguous_max,paged arrivals.rate=0.5,1,2 hydra/launcher=joblib
uses all cores.
--config-dir DIR adds user options: DIR/model/NAME.yaml, DIR/server/NAME.yaml,
DIR/gpu/NAME.yaml, ...
--from-vllm "vllm serve MODEL --max-num-seqs 64 ..." gpu=NAME takes vLLM's words, and says
what it ignored.
testbed list shows all options, with a line about each."""
COMMENT = re.compile(r"\s*(?P<key>[\w.]+):[^#]*# (?P<text>.*)")


def main(options: Namespace) -> None:
    """Check the options, then run or sweep."""
    words = [*(f"--config-dir={folder}" for folder in options.config_dir), *options.overrides]
    if options.from_vllm is not None:
        from testbed.experiments.runs.overrides import expand

        words = expand(options.from_vllm, words)
    if options.help:
        return print_help(words)
    for word in words:
        if word.lstrip("+").startswith("hydra.mode="):
            raise InputError(f"{word}: is not read (-m makes a sweep)")
    from testbed.experiments.commands import launch

    return (
        launch.sweep(words, options.again)
        if options.multirun
        else launch.run_one(words, options.again)
    )


def print_help(words: Sequence[str]) -> None:
    """Print the groups and the values, after the overrides among the arguments."""
    from testbed.experiments.runs.overrides import user_folders
    from testbed.experiments.runs.shown_values import value_lines

    folders = user_folders(words)
    print(ABOVE, "", "== Groups (choose with group=option) ==", sep="\n")
    for group in GROUPS:
        print(f"{KEYS.get(group, group)}: {', '.join(names_of(group, folders))}")
    print("", "== Values (set with key=value) ==", *value_lines(words), "", BELOW, sep="\n")
