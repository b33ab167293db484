"""`testbed list`: every choice of a group with its class, and those of a user's folder."""

import re

import pytest
from refusals import check_words

from testbed.experiments.runs.choice_names import names_of

SYSTEM = "# @package _global_\n# Seven requests\ndefaults:\n  - override /scheduler: separate\n"


def listed(output):
    """The names of each group in a table."""
    rows = re.findall(r"(?m)^│ ([\w.-]+) +│ ([\w.-]+) +│", output)
    return {group: {name for other, name in rows if other == group} for group, _ in rows}


@pytest.mark.parametrize("group", ["policy", "eviction", "scheduler", "preemption", "model"])
def test_every_choice_of_a_group_is_listed(testbed, group):
    assert listed(testbed.done("list", group))[group] == set(names_of(group))


def test_choices_have_their_class_and_meaning(testbed):
    output = " ".join(testbed.done("list", "eviction", "tier").split())
    check_words(("testbed.memory.prefix_cache.eviction.lru.Lru", "Least recently used"), output)
    check_words(("eviction@policy.eviction=NAME", "+tier@server.tiers.NAME=NAME"), output)


def test_choices_of_a_users_folder_are_listed_beside_those_that_ship(testbed, tmp_path):
    path = tmp_path / "options" / "system" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(SYSTEM)
    output = testbed.done("list", "system", "--config-dir", "options")
    assert {"tiny", "vllm", "vllm-v1", "orca-max"} <= listed(output)["system"]
    assert "Seven requests" in output


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("evictoin",), ("evictoin: is no group", "did you mean eviction?")),
        (("--config-dir", "nowhere"), ("nowhere", "no such folder")),
    ],
)
def test_groups_and_folders_that_are_not_there_are_refused(testbed, words, parts):
    check_words(parts, testbed.refused("list", *words))
