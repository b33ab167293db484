"""`testbed run`: one simulation, or with -m a sweep; its help shows every group and every value."""

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.runs.choice_names import CONF, GROUPS, KEYS, files_of, names_of
from testbed.trusted import FLAG

ABOVE = "testbed run [OVERRIDE ...]: one simulation. -m with comma-separated values: a sweep."
BELOW = """hydra.run.dir=DIR names the run folder; the default is runs/<hash of config and inputs>.
testbed run -m policy=contiguous_max,paged arrivals.rate=0.5,1,2 hydra/launcher=joblib
uses all cores.
--config-dir DIR adds user options: DIR/model/NAME.yaml, DIR/server/NAME.yaml,
DIR/gpu/NAME.yaml, ...
--trust-plug-ins loads classes that its files name, which runs their code; a class that the
command line names needs no trust.
--from-vllm "vllm serve MODEL --max-num-seqs 64 ..." gpu=NAME takes vLLM's words, and says
what it ignored.
testbed list shows all options, with a line about each."""
COMMENT = re.compile(r"\s*(?P<key>[\w.]+):[^#]*# (?P<text>.*)")


def main(options: Namespace) -> None:
    """Check the options, then run or sweep."""
    words = [*(f"--config-dir={folder}" for folder in options.config_dir), *options.overrides]
    if options.trust_plug_ins:
        words = [FLAG, *words]
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

    folders = user_folders(words)
    print(ABOVE, "", "== Groups (choose with group=option) ==", sep="\n")
    for group in GROUPS:
        print(f"{KEYS.get(group, group)}: {', '.join(names_of(group, folders))}")
    print("", "== Values (set with key=value) ==", *_values(words, folders), "", BELOW, sep="\n")


def _values(words: Sequence[str], folders: Sequence[Path]) -> Iterator[str]:
    from omegaconf import OmegaConf

    from testbed.experiments.runs.compose import hydra_config, key_errors_explained, register_models
    from testbed.experiments.runs.overrides import normalize

    register_models()
    with key_errors_explained(words):
        config = hydra_config([word.partition(",")[0] for word in normalize(words)], whole=True)
    choices = {
        str(group).partition("@")[0]: str(name)
        for group, name in config.hydra.runtime.choices.items()
    }
    comments = {
        group: dict(_comments(group, name, folders))
        for group, name in choices.items()
        if group in GROUPS
    }
    comments["gpu"] |= {key: text for key, text in comments["server"].items() if key == "num_gpus"}
    files = ("efficiencies/h200", "limits", "memory", "run")
    shared = {key: text for name in files for key, text in _lines(CONF / f"{name}.yaml")}
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    for line in OmegaConf.to_yaml(own).splitlines():
        key = line.partition(":")[0]
        if not line.startswith(" "):
            group = key
        within = comments.get("gpu" if group == "server" else group, {}) | comments.get(group, {})
        text = within.get(key.strip()) or (
            group != "model" and shared.get(key.strip())
        )  # max_len is a workload's too
        if (
            "_target_: testbed.core.specs." not in line or group == "cost"
        ):  # elsewhere it is no choice
            yield f"{line}  # {text}" if text else line


def _comments(group: str, name: str, folders: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    path = files_of(group, folders).get(name)
    if path is not None:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("  - ") and line[4:].strip() in files_of(group, folders):
                yield from _comments(group, line[4:].strip(), folders)
        yield from _lines(path)


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    found = map(COMMENT.match, path.read_text(encoding="utf-8").splitlines())
    yield from ((match["key"], match["text"]) for match in found if match)
