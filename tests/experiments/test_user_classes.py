"""Classes of a user's file are accepted wherever a built-in name is, beside built-in ones."""

import csv
import importlib

import pytest
import yaml
from refusals import check_words

from testbed import simulate, sweep
from testbed.experiments.examples.example_request_order import ShortestPromptAged
from testbed.experiments.runs.compose import configured
from testbed.speculation.acceptance import Constant

FILE = """
from typing import Annotated
from annotated_types import Gt
from testbed.memory.policy import MemoryPolicy
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.mixed import MixedPrefill

class MyOrder(Lru):
    pass

class MyScheduler(MixedPrefill):
    pass

class MyPolicy(PrefixCaching):
    def __init__(self, pool, eviction=None, half_block: Annotated[int, Gt(0)] = 8):
        super().__init__(pool, eviction=eviction, block_size=2 * half_block)

class Half(MemoryPolicy):
    def admit(self, seqs, num_tokens): ...
    def release(self, seq): ...
    def table(self, seq): ...
"""
SHORT = ("arrivals.duration_s=3", "outputs=summary")


@pytest.fixture
def mine(testbed, tmp_path, monkeypatch):
    """The module of the user's file, which lies in the working folder."""
    (tmp_path / "users_file.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("users_file")  # the fixture `testbed` forgets it


def rows(folder):
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("launcher", ["", "hydra/launcher=joblib"])
def test_user_classes_and_built_in_ones_run_in_one_sweep(testbed, tmp_path, launcher):
    testbed.done(
        "run",
        "-m",
        "policy=prefix_caching",
        "eviction@policy.eviction=lru,users_file:MyOrder",
        "scheduler=mixed,users_file:MyScheduler",
        *SHORT,
        *filter(None, [launcher]),
    )
    table = rows(tmp_path / "runs")
    chosen = {(row["eviction@policy.eviction"], row["scheduler"]) for row in table}
    evictions, schedulers = ("lru", "users_file:MyOrder"), ("mixed", "users_file:MyScheduler")
    assert chosen == {(order, scheduler) for order in evictions for scheduler in schedulers}
    assert len({row["ttft_s_p99"] for row in table}) == 1  # they decide as the built-in ones do


@pytest.mark.usefixtures("mine")
def test_user_policy_and_a_built_in_one_run_in_one_sweep(testbed, tmp_path):
    testbed.done("run", "-m", "policy=paged,users_file:MyPolicy", *SHORT)
    assert {row["policy"] for row in rows(tmp_path / "runs")} == {"paged", "users_file:MyPolicy"}


def test_python_takes_names_and_classes_side_by_side(mine):
    options = {"duration_s": 3, "jobs": 1}
    policies = sweep(policy=["paged", "users_file:MyPolicy", mine.MyPolicy], **options)
    assert list(policies["policy"]) == ["paged", "users_file:MyPolicy", "MyPolicy"]
    assert list(policies["block_size"]) == [16, 16, 16]
    orders = sweep(
        policy=["prefix_caching"],
        eviction=["lru", "users_file:MyOrder", mine.MyOrder],
        scheduler=["mixed", mine.MyScheduler],
        **options,
    )
    assert len(orders) == 6
    assert orders["ttft_s_p99"].nunique() == 1


def test_an_order_of_requests_is_a_class_or_an_object_too(tmp_path):
    shortest = ShortestPromptAged, {"tokens_per_s": 7}
    for order in (shortest, ShortestPromptAged(tokens_per_s=7)):
        result = simulate(order=order, duration_s=3)
        assert result.setup.scheduler.order.tokens_per_s == 7
    folder = simulate(order=shortest, duration_s=3).save(tmp_path / "kept")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["scheduler"]["order"]["tokens_per_s"] == 7


def test_acceptance_is_a_class_or_an_object_too():
    drafts = {"system": "vllm-v1", "speculation": "eagle3", "speculation.num_drafts": 2}
    of_model = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "duration_s": 3}
    summary = simulate(acceptance=(Constant, {"rate": 0}), **drafts, **of_model).summary
    assert summary["speculation"]["accepted"] == 0


def test_parameters_of_a_user_class_obey_its_annotations(mine):
    with pytest.raises(ValueError, match=r"policy\.half_block=0: "):
        simulate(policy=(mine.MyPolicy, {"half_block": 0}), duration_s=3)
    result = simulate(policy=(mine.MyPolicy, {"half_block": 4}), duration_s=3)
    assert result.summary["run"]["block_size"] == 8


def test_a_pair_of_class_and_parameters_is_shown_with_them(mine):
    pairs = [(mine.MyPolicy, {"half_block": n}) for n in (4, 8)]
    table = sweep(policy=pairs, duration_s=3, jobs=1)
    shown = ["MyPolicy(half_block=4)", "MyPolicy(half_block=8)"]
    assert list(table["policy"]) == shown
    parameters = [text.partition("half_block=")[2][0] for text in table["policy_in_full"]]
    assert parameters == ["4", "8"]


def test_sweep_into_a_folder_takes_classes_of_modules(mine, tmp_path):
    table = sweep(
        policy=["prefix_caching"],
        eviction=["lru", mine.MyOrder],
        duration_s=3,
        jobs=1,
        folder=tmp_path / "kept",
    )
    assert len(table) == len(list((tmp_path / "kept").glob("*/summary.json"))) == 2


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    "line",
    [
        "policy=users_file:MyPolicy policy.half_block=4",
        "policy=custom policy._target_=users_file:MyPolicy policy.half_block=4",
        "policy=users_file:MyPolicy +policy.half_block=4",
    ],
)
def test_a_parameter_of_a_user_class_is_a_key_like_any_other(line):
    config = configured(line.split())
    assert config.policy.parameters == {"half_block": 4}


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("policy=users_file:MyPolicy policy.half_blok=4", ("half_blok", "half_block")),
        ("policy=paged policy.half_block=4", ("policy.half_block",)),
        (
            "eviction@policy.eviction=users_file:MyOrder policy.eviction.share=4 "
            "policy=prefix_caching",
            ("MyOrder", "share"),
        ),
        ("policy=users_file.MyPolicy", ("users_file:MyPolicy",)),
        ("policy=users_file.py:MyPolicy", ("users_file:MyPolicy",)),
        ("policy=users_files:MyPolicy", ("users_files.py", "PYTHONPATH")),
        ("model=users_file:MyPolicy", ("model", "no class")),
        ("policy=users_file:Half", ("Half", "extend()", "usage()")),
        ("policy=users_file:MyOrder", ("MyOrder", "MemoryPolicy")),
        (
            "policy=prefix_caching "
            "eviction@policy.eviction=testbed.memory.tiers.load_rules:LoadNever",
            ("LoadNever", "EvictionOrder"),
        ),
        (
            "policy=prefix_caching policy.eviction=lru",
            ("policy.eviction=lru", "eviction@policy.eviction="),
        ),
        (
            "policy=tiered +tier@server.tiers.dram=dram store@policy.store=users_file:MyOrder",
            ("MyOrder", "StoreRule"),
        ),
    ],
)
def test_words_of_a_user_class_that_mean_nothing_are_refused(testbed, line, words):
    code, _, error = testbed("run", *line.split(), *SHORT)
    assert code == 2
    check_words(words, error)


FAULTS = """
from testbed.memory.paged.paged import Paged

class Absent(Paged):
    def extend(self, batch, steps):
        return None

class Lost(Paged):
    def extend(self, batch, steps):
        raise KeyError(batch)
"""


@pytest.fixture
def faults(testbed, tmp_path, monkeypatch):
    """Policies of the user's that fail during a run; the fixture `testbed` runs the commands."""
    (tmp_path / "users_fault.py").write_text(FAULTS)
    monkeypatch.syspath_prepend(tmp_path)
    return testbed


def test_policy_that_breaks_a_clause_in_a_run_is_pointed_to_check(faults):
    code, _, error = faults("run", "policy=users_fault:Absent", *SHORT)
    assert code == 2
    assert "Absent answered None" in error
    assert "`testbed check users_fault:Absent`" in error
    code, shown, _ = faults("check", "users_fault:Absent", "--examples", "5")
    assert code == 1
    assert "extend" in shown


def test_the_fault_of_a_policy_is_named_without_addresses(faults):
    code, _, error = faults("run", "policy=users_fault:Lost", *SHORT)
    assert code == 2
    assert "KeyError: <" in error
    assert "Batch object>" in error
    assert "users_fault.py:10" in error
    assert "`testbed check users_fault:Lost`" in error


def test_check_says_where_a_policy_raised(faults):
    code, shown, _ = faults("check", "users_fault:Lost", "--examples", "2")
    assert code == 1
    assert "users_fault.py:10" in shown
