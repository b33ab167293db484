"""Files with the names of version 0.1.0: refused with the new name, and changed by `testbed migrate`."""

import csv
import gzip
import json
import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from example_policy import Slabs
from refusals import refuses

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.renamed import kinds
from testbed.cost.sections import read_profile
from testbed.experiments.compare.finished_run import read_run
from testbed.experiments.runs.compose import configured
from testbed.sched.mixed import MixedPrefill

ROOT = Path(__file__).parents[2]
SHORT = ("arrivals.duration_s=5", "outputs=summary", "hydra.run.dir=out")
OLD_POLICY = """\
from testbed.core.slots import Unowned
from testbed.memory.policy import MemoryPolicy

class Mine(MemoryPolicy):
    def extend(self, batch, num_tokens): return sum(one.room for one in batch)
    def usage(self): return Unowned()
    def horizon(self, batch): return open(batch.left)  # horizon stays in a comment
    def stored(self, num_tokens): return "stored"
"""
FILES = {
    "run.yaml": (
        "trace: {prefix: 80}  # of the provider\nother: {prefix: 3}\ncommon: [trace.prefix=80, other.prefix=3]\n",
        "trace: {registered_prefix: 80}  # of the provider\nother: {prefix: 3}\n"
        "common: [trace.registered_prefix=80, other.prefix=3]\n",
    ),
    "trace.yaml": (
        '_target_: testbed.traces.csv_lengths.CsvLengths\n"content_column": my_ids\n',
        '_target_: testbed.traces.csv_lengths.CsvLengths\n"prompt_ids_column": my_ids\n',
    ),
    "prompts.csv": (
        "input_tokens,output_tokens,content_ids\n3,4,7\n",
        "input_tokens,output_tokens,prompt_ids\n3,4,7\n",
    ),
    "profile.json": (
        '{"launched_singly": {"axes": ["longest"]}, "note": "longest"}',
        '{"launched_eager": {"axes": ["max_context"]}, "note": "longest"}',
    ),
    "mine.py": (OLD_POLICY, OLD_POLICY.replace("Unowned", "NonSequenceSlots")),
}


def test_modules_were_renamed_to_modules_that_exist():
    assert [module for module in kinds()["module"].values() if find_spec(module) is None] == []


def test_changelog_shows_the_renaming_table():
    rows = re.findall(r"^\| .* \| `([^`]+)` \| `([^`]+)` \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert rows == [pair for names in kinds().values() for pair in names.items()]


@pytest.mark.parametrize("name", [*FILES, "prompts.csv.gz"])
def test_migrate_renames_and_keeps_everything_else(testbed, tmp_path, name):
    pack = partial(gzip.compress, mtime=0) if name.endswith(".gz") else bytes
    old, new = (pack(text.encode()) for text in FILES[name.removesuffix(".gz")])
    (tmp_path / name).write_bytes(old)
    output = testbed.done("migrate", name)
    assert (tmp_path / name).read_bytes() == old
    assert (tmp_path / f"{name}.new").read_bytes() == new
    assert f"-> {name}.new" in output
    testbed.done("migrate", "--in-place", name)
    assert (tmp_path / name).read_bytes() == new
    assert "->" not in testbed("migrate", name)[1]


def test_migrate_points_out_what_it_cannot_decide(testbed, tmp_path):
    (tmp_path / "mine.py").write_text(OLD_POLICY)
    notes = [line for line in testbed("migrate", "mine.py")[1].splitlines() if "by hand" in line]
    assert notes == [
        f"mine.py:{line}: change by hand: {old} may be one of the API's, which is called {new} now"
        for line, old, new in ((5, ".room", "num_slots"), (7, "def horizon", "guaranteed_steps"),
                               (8, "def stored", "num_stored"))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nowhere.yaml", None),
        ("notes.txt", b"room"),
        ("broken.yaml", b"a: ["),
        ("broken.csv.gz", b"no gzip"),
        ("broken.csv", b"\xff\xfe"),
    ],
)
def test_migrate_refuses_what_it_cannot_read_and_writes_nothing(testbed, tmp_path, name, content):
    (tmp_path / "run.yaml").write_text(FILES["run.yaml"][0])
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert name in testbed.refused("migrate", "run.yaml", name)
    assert not (tmp_path / "run.yaml.new").exists()


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["trace=wmt_1shot", "trace.prefix=80"], "trace.registered_prefix"),
        (["trace=csv", "trace.path=old.csv"], "'prompt_ids'"),
        (["policy=mine:Mine"], "publish()"),
    ],
    ids=" ".join,
)
def test_old_names_are_refused_with_the_new_one(testbed, tmp_path, words, new):
    (tmp_path / "old.csv").write_text("input_tokens,output_tokens,content_ids\n16,4,7\n")
    (tmp_path / "mine.py").write_text(
        "from example_policy import Slabs\nclass Mine(Slabs):\n    def computed(self, seq, num_tokens): pass\n"
    )
    assert f"is called {new} since 0.2.0" in testbed.refused("run", *words, *SHORT)
    assert not (tmp_path / "out").exists()


def built_with(**parts):
    """The objects of a run with some parts given as classes or functions."""
    return build(RunConfig.from_values({**configured(()).values, **parts}))


@pytest.mark.parametrize("old", kinds()["policy"])
def test_policies_with_old_methods_are_refused(old):
    policy = type("Old", (Slabs,), {old: lambda self, *_: 0})
    refuses(rf"Old\.{old}: .* is called {kinds()['policy'][old]}\(\)", built_with, policy=policy)


@pytest.mark.parametrize("old", ["end", "prompt_phases"])
def test_schedulers_with_old_members_are_refused(old):
    scheduler = type("Old", (MixedPrefill,), {old: MixedPrefill.prefills})
    with pytest.raises(InputError, match=f"is called {kinds()['scheduler'][old]}"):
        built_with(scheduler=partial(scheduler, max_num_batched_tokens=512, max_num_seqs=8))


@pytest.mark.parametrize(
    ("section", "new"),
    [
        ({"launched_together": {"axes": ["kernel", "num_seqs"], "points": [["paged", 1, 2.0]]}}, "launched_graph"),
        ({"unequal_lengths": {"axes": ["longest"], "points": [[1, 0.5]]}}, "max_context"),
    ],
)
def test_profiles_with_old_names_are_refused(tmp_path, section, new):
    page = (ROOT / "testbed" / "cost" / "PROFILE_FORMAT.md").read_text()
    profile = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    profile["sections"] |= section
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    refuses(f"is called {new} since", read_profile, path)


def test_run_folders_with_old_columns_are_refused(run):
    folder = run("arrivals.duration_s=5 outputs=full").folder
    table = folder / "iterations.csv"
    rows = list(csv.reader(table.open()))
    table.write_text(
        table.read_text().replace(",".join(rows[0]), ",".join(rows[0]).replace("external_fragmentation", "scattered"))
    )
    refuses("column 'scattered' is called 'external_fragmentation'", read_run, "run", folder)
