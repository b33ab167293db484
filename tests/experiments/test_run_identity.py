"""A run's id covers what makes its result; its folder is complete or not there after a kill."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from refusals import refuses

from testbed.experiments.runs import run_folder
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_folder import complete, read_config, run_into
from testbed.experiments.runs.whole_files import MARK
from testbed.run.config import RunConfig
from testbed.run.identity import identify, run_id

SHORT = ("arrivals.duration_s=5", "outputs=summary")
NUM_KILLS, SEED = 4, 42
FORK = multiprocessing.get_context("fork")


def edit(path, change):
    """Change the values in a YAML file."""
    values = yaml.safe_load(path.read_text())
    change(values)
    path.write_text(yaml.safe_dump(values))


def leftovers(folder):
    return [path for path in folder.iterdir() if MARK in path.name]


def test_id_is_the_same_after_a_round_trip_through_the_folder(tmp_path):
    config = configured(("+system=vllm-v1", *SHORT))
    stored = run_into(config, tmp_path)
    assert stored.folder == tmp_path / run_id(config)
    assert read_config(stored.folder) == config
    assert run_id(read_config(stored.folder)) == stored.run_id


def test_complete_run_is_not_run_again(tmp_path):
    config = configured(SHORT)
    assert run_into(config, tmp_path).is_new
    assert not run_into(config, tmp_path).is_new
    assert run_into(config, tmp_path, again=True).is_new


@pytest.mark.parametrize("name", ["lengths.csv", "my_policy.py", "beside.py", "inner/deep.py"])
def test_editing_a_file_that_a_run_names_repeats_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "inner").mkdir()
    files = {
        "lengths.csv": "input_tokens,output_tokens,arrival_s\n7,9,0\n",
        "my_policy.py": (
            "from testbed.memory.paged.paged import Paged\nimport beside\n"
            "class Mine(Paged):\n    pass\n"
        ),
        "beside.py": "from inner import deep\n",
        "inner/__init__.py": "",
        "inner/deep.py": "",
    }
    for file, text in files.items():
        Path(file).write_text(text)
    words = ("trace=csv", "trace.path=lengths.csv", "arrivals=replay", "outputs=summary")
    config = configured(("policy=my_policy:Mine", *words))
    first = run_into(config, tmp_path / "runs")
    assert not run_into(config, tmp_path / "runs").is_new
    comment = "8,9,0\n" if name.endswith("csv") else "# another\n"
    Path(name).write_text(files[name] + comment)
    second = run_into(config, tmp_path / "runs")
    assert second.is_new
    assert second.run_id != first.run_id
    for module in ("my_policy", "beside", "inner", "inner.deep"):
        sys.modules.pop(module, None)


def test_files_and_modules_are_recorded_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("orders.py").write_text(
        "from testbed.memory.prefix_cache.eviction.lru import Lru as Mine\n"
    )
    Path("table.json").write_text("{}")
    config = configured(
        (
            "policy=prefix_caching",
            "eviction@policy.eviction=orders:Mine",
            "server.gpu.transfers=table.json",
        )
    )
    inputs = identify(config).inputs
    assert set(inputs["files"]) == {"table.json"}
    assert set(inputs["modules"]) == {"orders"}


def test_edited_config_is_refused(tmp_path):
    folder = run_into(configured(SHORT), tmp_path).folder
    path = folder / "config.yaml"
    text = path.read_text()
    path.write_text(f"# a note\n{text}")
    assert read_config(folder).seed == 0
    edit(path, lambda values: values.update(seed=1))
    refuses("config.yaml: ", read_config, folder)
    path.write_text(text)
    assert read_config(folder).seed == 0


def test_edited_folder_is_not_taken_for_complete(tmp_path):
    stored = run_into(configured(SHORT), tmp_path)
    edit(stored.folder / "config.yaml", lambda values: values.update(seed=1))
    again = run_into(configured(SHORT), tmp_path)
    assert again.is_new
    assert again.summary == stored.summary
    assert read_config(again.folder).seed == 0


def test_two_processes_do_not_take_each_others_run_for_their_own(tmp_path, monkeypatch):
    """The other one replaces the folder between this one's rename and its reading."""
    folder = tmp_path / "out"
    finish = run_folder.whole_folder

    @contextmanager
    def overtaken(*arguments):
        with finish(*arguments) as new:
            yield new
        with monkeypatch.context() as patch:
            patch.setattr(run_folder, "whole_folder", finish)
            run_into(configured((*SHORT, "seed=1")), tmp_path, folder, again=True)

    monkeypatch.setattr(run_folder, "whole_folder", overtaken)
    refuses("out: ", run_into, configured(SHORT), tmp_path, folder)


def test_run_of_another_version_of_the_package_is_read(tmp_path):
    """Its code is recorded, not compared."""
    config = configured(SHORT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("testbed.run.identity.code_hash", lambda: "of another version")
        stored = run_into(config, tmp_path)
    assert stored.run_id != run_id(config)
    assert read_config(stored.folder) == config
    edit(stored.folder / "config.yaml", lambda values: values.update(seed=1))
    refuses(r"config\.yaml: ", read_config, stored.folder)


def test_folder_of_another_run_is_refused(tmp_path):
    run_into(configured(SHORT), tmp_path, tmp_path / "out")
    other = configured(("seed=1", *SHORT))
    refuses("out: ", run_into, other, tmp_path, tmp_path / "out")
    assert run_into(other, tmp_path, tmp_path / "out", again=True).is_new


def test_files_of_the_user_stay_and_folders_are_refused(tmp_path):
    out = tmp_path / "out"
    run_into(configured(SHORT), tmp_path, out)
    (out / "notes.txt").write_text("mine")
    run_into(configured(SHORT), tmp_path, out, again=True)
    assert (out / "notes.txt").read_text() == "mine"
    (out / "more").mkdir()
    with pytest.raises(OSError, match="has a folder more"):
        run_into(configured(SHORT), tmp_path, out, again=True)
    assert (out / "more").is_dir()
    assert not leftovers(tmp_path)


def test_a_policy_given_as_an_object_is_refused_in_a_run_folder(tmp_path):
    config = configured(SHORT)
    built = config.policy.make("policy", None) if config.policy.is_instance else object()
    values = RunConfig.from_values({**config.values, "policy": built})
    refuses("policy: ", run_into, values, tmp_path)


def run_twice(config, parent, folder, results):
    """Run into one folder, beside another process that does the same."""
    results.put(run_into(config, parent, folder).summary)


def test_two_processes_in_one_folder_leave_one_complete_run(tmp_path):
    config, results = configured(("arrivals.duration_s=20",)), FORK.Queue()
    arguments = (config, tmp_path, tmp_path / "out", results)
    workers = [FORK.Process(target=run_twice, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    summaries = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert summaries[0] == summaries[1] == complete(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def run_forever(configs, parent, folder):
    """Replace the run in a folder again and again."""
    while True:
        for config in configs:
            run_into(config, parent, folder, again=True)


def test_killed_process_leaves_a_complete_run_or_none(tmp_path):
    configs = [configured((f"seed={seed}", "arrivals.duration_s=5")) for seed in (0, 1)]
    ids, out, draw = {run_id(config) for config in configs}, tmp_path / "out", random.Random(SEED)
    run_into(configs[0], tmp_path, out)
    files = {path.name for path in out.iterdir()}
    seen = set()
    for _ in range(NUM_KILLS):
        worker = FORK.Process(target=run_forever, args=(configs, tmp_path, out))
        worker.start()
        time.sleep(draw.uniform(0, 0.3))
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        if out.exists():
            assert {path.name for path in out.iterdir()} == files
            summary = json.loads((out / "summary.json").read_text())
            assert summary["run"]["id"] in ids
            assert read_config(out).seed in (0, 1)
            seen.add(summary["run"]["id"])
    assert seen
    run_into(configs[0], tmp_path, out, again=True)
    assert not leftovers(tmp_path)
