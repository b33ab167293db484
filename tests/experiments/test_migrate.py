"""Files with the names of version 0.1.0: refused with the new name, and changed by `testbed
migrate`.
"""

import csv
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


def test_modules_were_renamed_to_modules_that_exist():
    assert [module for module in kinds()["module"].values() if find_spec(module) is None] == []


def test_changelog_shows_the_renaming_table():
    rows = re.findall(
        r"^\| .* \| `([^`]+)` \| `([^`]+)` \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert rows == [pair for names in kinds().values() for pair in names.items()]


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
        "from example_policy import Slabs\nclass Mine(Slabs):\n    def computed(self, seq, "
        "num_tokens): pass\n"
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
        (
            {"launched_together": {"axes": ["kernel", "num_seqs"], "points": [["paged", 1, 2.0]]}},
            "launched_graph",
        ),
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
        table.read_text().replace(
            ",".join(rows[0]), ",".join(rows[0]).replace("external_fragmentation", "scattered")
        )
    )
    refuses("column 'scattered' is called 'external_fragmentation'", read_run, "run", folder)
