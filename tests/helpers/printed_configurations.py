"""Documented commands and their configurations in the source tree on the import path, as JSON.

python tests/helpers/printed_configurations.py commands TREE
python tests/helpers/printed_configurations.py print < COMMANDS

The commands are those of the Markdown of TREE, each option of every group, and each model; points
of sweeps are commands of their own. A command that is refused has its message.
`compare_configurations.py` runs this in two trees.
"""

import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from testbed.core.model_files import model_names
from testbed.experiments.runs import choice_names
from testbed.experiments.runs.compose import configured
from testbed.experiments.vllm_server.translation import expand

BLOCK = re.compile(r"```(?:bash|sh)\n(.*?)```", re.DOTALL)
FENCED = re.compile(r"```.*?```", re.DOTALL)
INLINE = re.compile(r"`(testbed [a-z][^`]* [^`]+)`")
OVERRIDE = re.compile(r"[~+]*[\w.@/]+=|~")
SERVERS = ("--from-vllm",)
NO_CONFIGURATION = ("fits",)  # commands that take no overrides
WHOLE = ("workload.mix", "faults")  # values with commas that are no sweep
PLACES = ("MODULE:CLASS", "DIR", "RUN", "$")  # that stand for a reader's own
OPTIONS = {  # what an option of a group needs beside it
    "router": ["replicas=2"],
    "handover": ["replicas=2", "prefill_replicas=1"],
    "eviction": ["policy=prefix_caching"],
    "store": ["policy=tiered"],
    "load": ["policy=tiered"],
    "tier": ["policy=tiered"],
    "acceptance": ["speculation=ngram"],
}
WITHOUT_FILE = [
    "alpaca",
    "chat",
    "chat_histories",
    "guidellm",
    "random",
    "sharegpt",
    "wmt_1shot",
    "wmt_5shot",
]
UNDER = ([], ["policy=prefix_caching_v1", "scheduler=vllm_v1_async", "model=llama-3-8b"])
PLUG_INS = {  # of the pages, by module
    "my_policy": "class Slabs:\n    def __init__(self, pool, slab_size: int = 16): ...\n",
    "my_order": "class TwoSegments:\n    def __init__(self, protected_share: float = 0.8): ...\n",
}


def documented(pages: Path) -> Iterator[str]:
    """The command lines of the Markdown of a tree."""
    for path in sorted(pages.rglob("*.md")):
        is_page = not {"results", ".git", "findings"} & set(path.parts) and not path.is_symlink()
        if not is_page or any(folder.is_symlink() for folder in path.parents):
            continue
        text = path.read_text(encoding="utf-8")
        for block in BLOCK.findall(text):
            lines = block.replace("\\\n", " ").splitlines()
            yield from (line for line in lines if line.startswith("testbed "))
        yield from (" ".join(code.split()) for code in INLINE.findall(FENCED.sub("", text)))


def points(line: str) -> Iterator[tuple[str | None, list[str]]]:
    """The vLLM command of a line, and its overrides by point of a sweep."""
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError:  # a line of a page that is no whole command
        return
    if not words or words[0] in NO_CONFIGURATION:
        return
    server, axes, rest = None, list[list[str]](), iter(words[1:])
    for word in rest:
        if word in SERVERS:
            server = next(rest, None)
        elif word == "--config-dir":
            axes.append([f"--config-dir={next(rest)}"])
        elif OVERRIDE.match(word) and not word.startswith("hydra"):
            axes.append(list(values_of(word)))
    for point in itertools.product(*axes):
        yield server, list(point)


def values_of(word: str) -> Iterator[str]:
    """The overrides of a word that sweeps."""
    key, equals, text = word.partition("=")
    if not equals or key.lstrip("+") in WHOLE:
        yield word
        return
    depth, quote, value = 0, "", ""
    for mark in f"{text},":
        if mark == "," and not depth and not quote:
            yield f"{key}={value}"
            value = ""
            continue
        value += mark
        if quote or mark in "'\"":
            quote = "" if mark == quote else quote or mark
        else:
            depth += (mark in "[{(") - (mark in "]})")


def options() -> Iterator[list[str]]:
    """Each option of every group by itself and under vLLM, and each model."""
    for group in choice_names.GROUPS:
        key = choice_names.KEYS.get(group, group).replace("NAME", "below")
        for name in choice_names.names_of(group):
            needs = OPTIONS.get(group, [])
            if group == "trace" and name not in WITHOUT_FILE:
                needs = ["trace.path=x.csv"]
            if group == "model" or name == "custom":
                continue
            yield from ([*needs, f"{key}={name}", *under] for under in UNDER)
    for name in model_names():
        yield [f"model={name}"]
        yield [f"model={name}", "+system=vllm-v1", "gpu=h200"]
        yield [f"model={name}", "+system=vllm-v1-0.33", "gpu=h200"]


def commands(tree: Path) -> Iterator[tuple[str | None, list[str]]]:
    """All commands of a tree, but for those with words that stand for a reader's own."""
    of_pages = (point for line in dict.fromkeys(documented(tree)) for point in points(line))
    for server, words in itertools.chain(of_pages, ((None, words) for words in options())):
        if words and not any(place in word for word in words for place in PLACES):
            yield server, words


def printed(server: str | None, words: list[str]) -> object:
    """The plain values of a configuration, or why there is none."""
    try:
        with redirect_stderr(StringIO()):
            return configured(words if server is None else expand(server, words)).values
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(what: str, *trees: str) -> None:
    """Print the commands of a tree, or the configurations of commands."""
    if what == "commands":
        return json.dump(list(commands(Path(trees[0]))), sys.stdout)
    with TemporaryDirectory() as folder:
        for module, text in PLUG_INS.items():
            Path(folder, f"{module}.py").write_text(text, encoding="utf-8")
        sys.path.append(folder)
        json.dump([printed(*command) for command in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
