"""A default stands once: at the constructor or the typed model. A YAML file states what differs."""

from dataclasses import MISSING, asdict, fields
from functools import cache

import pytest
from omegaconf import OmegaConf

from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.compose import composed, composed_by_hydra, configured
from testbed.run.build import build
from testbed.run.config import ServerConfig, SoftwareConfig
from testbed.run.constructor_parameters import parameters_of
from testbed.run.parts import locate
from testbed.run.served_parts import served_parameters

FILES = sorted(
    path
    for path in CONF.rglob("*.yaml")
    if path.parent.name != "figure" and path.stem != "alternatives"
)
MODELS = {"server": ServerConfig, "software": SoftwareConfig}
# Options that exist because they differ from the usual one of their class, or are data sheets
VARIANTS = {
    "cost/auto",  # measured shares of bandwidth
    "cost/sosp23",
    "efficiencies/h200",
    "scheduler/sglang",  # what SGLang's server takes
    "scheduler/sglang_no_overlap",  # what SGLang's server takes
    "policy/tiered_exclusive",
    "speculation/eagle3",  # the vocabulary of published drafters
    "tier/dram",
    "tier/nvme",
    "trace/vidur",
    "trace/wmt_1shot",
    "trace/wmt_5shot",
}


EMPTY = (None, "", 0.0, {})
OF_CLASSES = ("policy", "scheduler", "preemption", "arrivals", "trace", "cost")


def name_of(path):
    return path.relative_to(CONF).with_suffix("").as_posix()


@cache
def stated_in(path):
    """The values of a file."""
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False) or {}


def classes_of(path):
    """The class of each mapping in a file, by the mapping's key; its own has the key ``."""
    stated = stated_in(path)
    mappings = {"": stated, **{key: entry for key, entry in stated.items() if key != "defaults"}}
    return {
        key: entry["_target_"]
        for key, entry in mappings.items()
        if isinstance(entry, dict) and entry.get("_target_", "???") != "???"
    }


def base_of(path, stated):
    """The class of a file that only changes another option of its group."""
    names = [entry for entry in stated.get("defaults", ()) if isinstance(entry, str)]
    bases = [path.with_name(f"{name}.yaml") for name in names if name[0] not in "/_"]
    return next((classes_of(base) for base in bases if base.is_file()), {})


def defaults_at(path, stated, key):
    """The defaults of the class that a mapping of a file is for."""
    if not key and path.parent.name in MODELS:
        cls = MODELS[path.parent.name]
        given = {field.name: field.default for field in fields(cls)}
        return {name: value for name, value in given.items() if value is not MISSING}
    target = classes_of(path).get(key) or base_of(path, stated).get(key)
    return {} if target is None else parameters_of(locate(target, "part")).plain_defaults


def stated_twice(path):
    """Each key of a file with its value and the constructor's default, if there is one."""
    stated = stated_in(path)
    nested = {key: value for key, value in stated.items() if isinstance(value, dict)}
    for key, values in [("", stated), *nested.items()]:
        defaults = defaults_at(path, stated, key)
        for name in values.keys() & defaults.keys():
            if defaults[name] != "???" and "${" not in str(values[name]):
                yield f"{key}.{name}".lstrip("."), values[name], defaults[name]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_repeats_no_default(path):
    assert [key for key, value, default in stated_twice(path) if value == default] == []


@pytest.mark.parametrize(
    "path", [path for path in FILES if name_of(path) not in VARIANTS], ids=name_of
)
def test_a_file_contradicts_no_default(path):
    """But for data sheets and what a software is, whose files give values to empty fields."""
    different = [(key, default) for key, value, default in stated_twice(path) if value != default]
    if path.parent.name in ("gpu", "server", "software"):
        different = [(key, default) for key, default in different if default not in EMPTY]
    assert different == []


def options_of(group):
    """The options of a group that are a class, with the class."""
    for path in FILES:
        if path.parent.name == group and (target := classes_of(path).get("")):
            yield path.stem, locate(target, group)


@cache
def every_option():
    """The options of groups of classes, each at GROUP_NAME of one configuration: to compose one
    takes longer than what is looked at.
    """
    options = [(path.parent.name, path.stem) for path in FILES if path.parent.name in OF_CLASSES]
    return composed_by_hydra("run", [f"+{group}@{group}_{name}={name}" for group, name in options])


def test_every_key_of_a_built_in_class_can_be_set_without_a_plus():
    for group in OF_CLASSES:
        for name, cls in options_of(group):
            keys = set(every_option()[f"{group}_{name}"])
            assert set(parameters_of(cls).plain_defaults) <= keys, name


def test_a_preset_repeats_nothing_of_the_options_that_it_chooses():
    """A preset's values would else count more than those of another option."""
    for path in sorted((CONF / "system").glob("*.yaml")):
        stated = stated_in(path)
        for group, values in stated.items():
            if not isinstance(values, dict):
                continue
            chosen = [entry for entry in stated["defaults"] if f"override /{group}" in str(entry)]
            name = next(iter(chosen[0].values())) if chosen else None
            if name is None or group == "software":
                continue
            target = every_option()[f"{group}_{name}"]["_target_"]
            defaults = parameters_of(locate(target, group)).plain_defaults
            same = {key for key in values if defaults.get(key, ...) == values[key]}
            assert not same, (path, same)


def test_no_configuration_has_what_the_builder_gives():
    """It would count more: the longest sequence of a model, which drafts stop at."""
    config = configured(["+system=vllm-v1", "speculation=heads", "gpu=h200"])
    speculation = config.speculation.make("speculation")
    for group in ("policy", "scheduler"):
        given = served_parameters(config, group, speculation)
        assert given
        assert not set(given) & set(config.parts[group].parameters)
    assert "max_len" in given


def test_a_drafting_scheduler_knows_the_longest_sequence():
    words = ["+system=vllm-v1", "speculation=heads", "gpu=h200", "model=llama-3-8b"]
    setup = build(configured([*words, "arrivals.duration_s=1"]))
    assert setup.scheduler.max_len == setup.model.max_len


def test_software_times_of_a_system_are_those_of_its_file():
    engine = composed("run", []).software
    assert SoftwareConfig(**OmegaConf.to_container(engine)) == SoftwareConfig(
        name="engine", overhead_s=0.2e-3, overhead_per_request_s=1.94e-6
    )
    assert asdict(SoftwareConfig("any"))["overhead_per_request_s"] == 0.0
