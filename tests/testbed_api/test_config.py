"""The typed configuration: every key known, every value of its type; what it writes it reads
again.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import MISSING, fields, replace
from functools import reduce
from itertools import chain, zip_longest
from operator import getitem
from pathlib import Path
from typing import Annotated, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Interval, Lt
from omegaconf import OmegaConf
from refusals import refuses

from testbed.core.oracle_protocols import LENGTHS
from testbed.experiments.runs import compose
from testbed.experiments.runs.choice_names import CLASS_OF_FILE
from testbed.experiments.runs.compose import configured
from testbed.memory.paged.paged import Paged
from testbed.run import identity
from testbed.run.build import build
from testbed.run.config import RunConfig
from testbed.run.constructor_parameters import parameters_of
from testbed.run.identity import run_id
from testbed.run.parts import Part, locate

SHORT = ("arrivals.duration_s=5",)


def test_config_values_round_trip():
    config = configured(("+system=vllm-v1", "window_s=[1,4]", "slo.ttft_s=0.5", *SHORT))
    assert RunConfig.from_values(config.values) == config
    assert run_id(RunConfig.from_values(config.values)) == run_id(config)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+num_replicas=2", "num_replicas: nothing reads it"),
        ("+workload.rate=2", "workload.rate: nothing reads it"),
        ("+server.gpu.speed=2", "server.gpu.speed: nothing reads it"),
        ("+policy.blocksize=8", "takes no blocksize; did you mean block_size?"),
        ("fast_forward=no", "fast_forward='no': must be true or false"),
        ("seed=true", "seed=True: must be a whole number"),
        ("window_s=[5]", "window_s=.*must have 2 values"),
        ("server.kv_memory_gib.opt-13b=-1", "kv_memory_gib.opt-13b=-1: must be at least 0 GiB"),
        ("server.kv_memory_gib.opt-13b=inf", "kv_memory_gib.opt-13b=inf: must be a finite number"),
        ("server.gpu.memory_bandwidth=4800", "must be at least 1,000,000,000 bytes/s"),
        ("slo.ttft_s=9e9", "exceeds the maximum of 9,000,000 s"),
        ("slo.ttf_s=1", "slo.ttf_s: nothing reads it; did you mean slo.ttft_s?"),
        ("policy.block_size=99999999999999999999", "policy.block_size=9*: exceeds the maximum"),
        ("trace=random trace.input_len=99999999999999999999", "trace.input_len=9*: exceeds"),
        ("policy.watermark=1.5", "policy.watermark=1.5: exceeds the maximum of 1"),
        ("+cost.software.extra_s.x=-1", "cost.software.extra_s.x=-1: must be at least 0 s"),
        ("outputs=ful", "outputs='ful': must be 'full', 'tables' or 'summary'"),
        (
            "+system=vllm-v1 scheduler.ignore_eos=no",
            "scheduler.ignore_eos='no': must be true or false",
        ),
        ("server.gpu.device=3", "server.gpu.device=3: must be text"),
    ],
)
def test_wrong_value_is_refused_with_its_key(override, message):
    refuses(message, lambda: build(configured((*override.split(), *SHORT))))


CONF = Path(compose.__file__).parents[1] / "conf"
PARTS = ("arrivals", "beams", "cost", "policy", "preemption", "scheduler", "trace")
SPECS = ("gpu/h200.yaml", "server/a100-40gb-x4.yaml")


def flat(values, key):
    """(key, value) of every value in groups of groups."""
    for name, value in values.items():
        yield from (
            flat(value, f"{key}.{name}") if isinstance(value, dict) else [(f"{key}.{name}", value)]
        )


def switches_and_numbers(path, config):
    """Words of a choice, and its switches and numbers, each with a word of a wrong type; `config`
    is composed of it.
    """
    group = path.parent.name
    place = "server.gpu" if group == "gpu" else group
    values = OmegaConf.to_container(OmegaConf.select(config, place))
    keys = dict(flat(values, place))
    requested = [
        f"{key}=x" for key, value in keys.items() if value == "???" and not key.endswith("_target_")
    ]
    wrong = {
        key: "no" if isinstance(value, bool) else "many"
        for key, value in keys.items()
        if isinstance(value, bool | int | float)
        and not key.startswith("server.kv_memory")
        and not key.rpartition(".")[2].isdigit()  # of a table by number
    }
    return [f"{group}={path.stem}", *requested], wrong if values.get("_target_") != "???" else {}


# The first choices of all groups in one configuration, then the second ones, because composing
# takes long.
CHOICES = [sorted((CONF / group).glob("*.yaml")) for group in PARTS] + [
    [CONF / name] for name in SPECS
]
ROUNDS = list(zip_longest(*CHOICES))
SWITCHES = {
    "fast_forward": "no",
    "workload.beam": "no",
    "server.memory_utilization": "many",
    "server.workspace_gib": "many",
}


@pytest.mark.parametrize("chosen", ROUNDS, ids=range(len(ROUNDS)))
def test_words_are_refused_for_switches_and_numbers_of_every_option(chosen):
    paths = [path for path in chosen if path]
    composed = compose.composed("run", [f"{path.parent.name}={path.stem}" for path in paths])
    choices = [switches_and_numbers(path, composed) for path in paths]
    config = configured([word for words, wrong in choices for word in words if wrong])
    usual = configured(()).values  # of the other groups
    switches = SWITCHES if chosen is ROUNDS[0] else {}
    for key, word in chain(switches.items(), *(wrong.items() for _, wrong in choices)):
        *groups, name = key.split(".")
        values = deepcopy({**usual, **{group: config.values[group] for group in groups[:1]}})
        reduce(getitem, groups, values)[name] = word
        refuses(f"{re.escape(key)}='{word}': ", lambda v=values: build(RunConfig.from_values(v)))


def test_options_left_out_in_python_have_the_defaults_of_the_config_files():
    config = configured(("engine=gpu",))
    for read in (config, config.engine, config.workload, config.slo):
        defaults = {
            field.name: field.default for field in fields(read) if field.default is not MISSING
        }
        defaults |= {
            name: getattr(read, name) for name in ("engine", "software") if name in defaults
        }  # named by files
        assert {name: getattr(read, name) for name in defaults} == defaults


def test_an_edited_file_of_a_user_is_read_again(tmp_path, monkeypatch):
    """The same words in one process: a notebook's second cell, or the same relative folder from
    another place.
    """
    sizes = []
    for place, size in (("a", 8), ("a", 4), ("b", 2)):
        (tmp_path / place / "mine" / "policy").mkdir(parents=True, exist_ok=True)
        text = f"defaults: [paged, _self_]\nblock_size: {size}\n"
        (tmp_path / place / "mine" / "policy" / "small.yaml").write_text(text)
        monkeypatch.chdir(tmp_path / place)
        sizes.append(
            configured(("--config-dir=mine", "policy=small", *SHORT)).policy.parameters[
                "block_size"
            ]
        )
    assert sizes == [8, 4, 2]


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        ("", False),
        ("model=llama-3-8b", True),
        ("model=llama-3-8b workload.max_len=2048", False),
        ("model=llama-3-8b scheduler=chunked", False),
    ],
)
def test_scheduler_note_reports_prompts_that_wait_for_the_whole_batch(words, noted):
    note = build(configured(tuple(words.split()))).description["scheduler_note"]
    assert ("max_num_batched_tokens=8192" in note) if noted else note is None


ENGINES_COSTS = "cost.path=gpu-engine/h200-llama-3-8b-tp1"


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (f"{ENGINES_COSTS} workload.num_seqs=4", True),
        (f"{ENGINES_COSTS} workload.num_seqs=4 workload.beam=true", True),
        (ENGINES_COSTS, False),
        ("cost.path=h200-llama-3-8b-tp1 workload.num_seqs=4", False),
    ],
)
def test_costs_of_one_sequence_a_request_say_so_where_requests_have_several(words, noted):
    on_an_h200 = ("model=llama-3-8b", "server=h200", "cost=profile", *SHORT)
    note = build(configured((*on_an_h200, *words.split()))).description["samples_note"]
    assert (note is not None) == noted


def test_config_part_can_be_a_class_or_an_object():
    config = configured(SHORT)
    by_class = build(replace(config, policy=Part(Paged, {"block_size": 8})))
    assert by_class.description["policy"] == "Paged(block_size=8)"
    built = build(replace(config, policy=Part(Paged(by_class.pool, block_size=32))))
    assert built.scheduler.policy.block_size == 32
    refuses(
        "scheduler: ",
        build,
        replace(config, scheduler=Part(built.scheduler)),
    )


def test_policy_with_its_own_tiers_runs_beside_configured_tiers():
    class Synchronous(Paged):
        def tier_slots(self):
            return {}

    config = configured(("+tier@server.tiers.dram=dram", *SHORT))
    assert isinstance(
        build(replace(config, policy=Part(Synchronous))).scheduler.policy, Synchronous
    )


def test_untyped_parameter_accepts_any_value():
    def plain(share=0):
        return [share]

    assert Part(plain, {"share": 0.5}).make("part") == [0.5]


def test_run_id_depends_on_every_input_file(tmp_path):
    """A folder's files, and the files that a trace reads in addition to its own."""
    folder = tmp_path / "clients"
    folder.mkdir()
    (folder / "a.json").write_text("{}")
    (tmp_path / "0_trace.jsonl").write_text("{}")
    passages = tmp_path / "2_passages.jsonl"
    for override, changed in (
        (f"trace=servegen trace.path={folder}", folder / "b.json"),
        (f"trace=ragpulse trace.path={tmp_path / '0_trace.jsonl'}", passages),
    ):
        config = configured((*override.split(), "arrivals=replay"))
        before = run_id(config)
        changed.write_text("1")
        assert run_id(config) != before


@pytest.mark.parametrize(
    "place", ["experiments/runs/made.py", "engine/engine.py", "core/models/one.json"]
)
def test_the_id_follows_all_code_that_makes_a_result(tmp_path, monkeypatch, place):
    monkeypatch.setattr(identity, "ROOT", tmp_path)
    hashes = []
    for folder in ("traces", "experiments/runs"):
        (tmp_path / folder).mkdir(parents=True)
    for text in "ab":
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
        identity.folder_hash.cache_clear()
        hashes.append(identity.code_hash.__wrapped__())
    identity.folder_hash.cache_clear()
    assert hashes[0] != hashes[1]


class Window(Paged):
    """A plug-in of which 0 is a size, and -1 an offset."""

    def __init__(
        self, pool, block_size: int = 16, num_gpus: Annotated[int, Ge(-1), Lt(4)] = 0, top_p=0.0
    ):
        super().__init__(pool, block_size or 16)


def test_a_plug_in_obeys_its_own_annotations_and_no_others():
    config = configured(SHORT)

    def with_parameters(**parameters):
        return build(replace(config, policy=Part(Window, parameters)))

    assert with_parameters(block_size=0, num_gpus=-1, top_p=2).scheduler.policy.block_size == 16
    refuses("policy.num_gpus=4: ", with_parameters, num_gpus=4)
    refuses("policy.num_gpus=-2: ", with_parameters, num_gpus=-2)
    refuses("policy.block_size='8': ", with_parameters, block_size="8")
    refuses("takes no blocksize; did you mean block_size", with_parameters, blocksize=8)


def numbers_of(hint):
    """The plain numbers in an annotation, each with its marks."""
    members, origin = get_args(hint), get_origin(hint)
    if hint in (int, float):
        yield hint, ()
    elif origin is Annotated and members[0] in (int, float):
        yield members[0], members[1:]
    elif origin is Mapping:  # its keys are names
        yield from numbers_of(members[1])
    else:
        for member in members:
            yield from numbers_of(member)


def built_in_classes():
    paths = [path for group in PARTS for path in sorted((CONF / group).glob("*.yaml"))]
    lines = (line for path in paths for line in path.read_text().splitlines())
    matches = filter(None, map(CLASS_OF_FILE.match, lines))
    return sorted({match["name"] for match in matches})


@pytest.mark.parametrize("target", built_in_classes())
def test_every_number_of_a_built_in_class_has_a_least_value(target):
    """Without one, a negative number would pass, and give a wrong result."""
    declared = parameters_of(locate(target, "part")).hints
    bounded = (Ge, Gt, Interval)
    options = {name: hint for name, hint in declared.items() if name != LENGTHS}
    for name, hint in options.items():
        for _, marks in numbers_of(hint):
            assert any(isinstance(mark, bounded) for mark in marks), name


def test_a_class_without_a_signature_has_no_known_parameters():
    parameters = parameters_of(int)
    assert (parameters.hints, parameters.has_others) == ({}, True)
