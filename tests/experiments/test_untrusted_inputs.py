"""Files from elsewhere run nothing, write nothing outside the target, and put nothing into a page.

Every test gives the command line a malicious input: a run folder, a folder of options, a profile, a
pickle, an archive, or a name. The payload of most makes a folder, `harm`, which must not exist
afterwards; `outside` is a folder that nothing may change.
"""

import gzip
import json
import os
import pickle
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml
from tiny_run import tiny_run

from testbed.core.errors import InputError
from testbed.experiments.runs.known_classes import OPTION, class_names, known_classes
from testbed.experiments.runs.run_folder import read_config
from testbed.run.identity import id_of

SCRIPT = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>\""
SOURCE_TREE = Path(__file__).parents[2]
MODEL = {
    "_target_": "testbed.core.specs.ModelSpec",
    "name": "foreign",
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 2,
    "num_kv_heads": 2,
    "head_size": 32,
    "ffn_size": 128,
    "ffn_matrices": 2,
    "vocab_size": 1000,
    "max_len": 64,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run that is like any other; not to be changed."""
    return tiny_run(tmp_path_factory.mktemp("runs") / "run", "outputs=tables")


@pytest.fixture
def harm(tmp_path):
    """The path of the folder that payloads make. At the end it must not exist, and what is outside
    must be as it was.
    """
    path = tmp_path / "harm"
    canary = tmp_path / "outside" / "canary.html"
    canary.parent.mkdir()
    canary.write_text("unchanged")
    yield path
    assert not path.exists(), "a payload ran"
    assert canary.read_text() == "unchanged"
    assert os.listdir(canary.parent) == [canary.name]


def foreign_run(finished, folder, **changes):
    """A copy of a run whose config has other values at these keys, with `__` between groups.

    Its id fits them: who makes such a folder knows how ids are made.
    """
    shutil.copytree(finished, folder)
    values = yaml.safe_load((folder / "config.yaml").read_text())
    for key, value in changes.items():
        *above, last = key.split("__")
        group = values
        for name in above:
            group = group[name]
        group[last] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    summary, inputs = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("summary", "inputs")
    )
    summary["run"]["id"] = id_of(values, inputs)
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def making(path):
    """A part whose construction makes a folder."""
    return {"_target_": "os.mkdir", "path": str(path)}


# Run folders


@pytest.mark.parametrize("command", ["memory", "timeline"])
def test_a_nested_class_of_a_run_folder_is_not_called(testbed, finished, harm, tmp_path, command):
    payload = {"_target_": "subprocess.Popen", "args": ["mkdir", str(harm)]}
    foreign_run(finished, tmp_path / "run", cost__efficiencies=payload)
    error = testbed.refused("show", command, "run")
    assert "subprocess.Popen" in error
    assert "run/config.yaml" in error
    assert OPTION in error


def test_a_report_and_a_comparison_call_no_class_of_a_run_folder(testbed, finished, harm, tmp_path):
    foreign_run(finished, tmp_path / "run", cost__efficiencies=making(harm))
    shutil.copytree(finished, tmp_path / "mine")
    testbed.done("report", "run")
    testbed.done("compare", "mine", "run", "--html", "page.html")


@pytest.mark.parametrize(
    "name",
    [
        "testbed.experiments.runs.run_folder.os.mkdir",  # an import of one of our modules
        "testbed.core.errors.InputError",  # ours, but no part of a run
        "testbed.experiments.runs.known_classes.CONF",
        "testbed.memory.nothing.Policy",
        "posix.mkdir",
        "builtins.eval",
        "evil.Policy",
    ],
)
def test_a_run_folder_may_name_only_parts_of_this_project(finished, harm, tmp_path, name):
    payload = {"_target_": name, "path": str(harm)}
    folder = foreign_run(finished, tmp_path / "run", policy=payload)
    with pytest.raises(InputError, match=f"policy._target_={name}"):
        read_config(folder)


def test_a_plug_in_of_a_run_folder_is_loaded_only_where_it_is_named(
    testbed, finished, harm, tmp_path
):
    (tmp_path / "beside.py").write_text(
        f"import os\nfrom example_policy import Slabs\nos.mkdir({str(harm)!r})\n"
    )
    policy = {"_target_": "beside.Slabs", "slab_size": 4}
    foreign_run(finished, tmp_path / "run", policy=policy)
    assert "beside.Slabs" in testbed.refused("show", "memory", "run")
    assert not harm.exists()
    testbed.refused("show", "memory", "run", OPTION, "example_policy:Slabs")
    assert not harm.exists()
    testbed.done("show", "memory", "run", OPTION, "beside:Slabs")
    harm.rmdir()  # it was made, as the user wanted


def test_a_tag_of_yaml_calls_nothing(testbed, finished, harm, tmp_path):
    for name in ("mine", "run"):
        shutil.copytree(finished, tmp_path / name)
    text = f"seed: !!python/object/apply:os.mkdir ['{harm}']\n"
    (tmp_path / "run" / "config.yaml").write_text(text)
    for command in (["show", "memory"], ["show", "timeline"], ["report"], ["compare", "mine"]):
        assert "cannot be read" in testbed.refused(*command, "run")


def test_links_in_a_run_folder_lead_nowhere(testbed, finished, harm, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    for name in ("memory_map.html", "timeline.json", "report.html"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "outside" / "canary.html")
    testbed.done("show", "memory", "run")
    testbed.done("show", "timeline", "run")
    testbed.done("report", "run")


def test_every_part_that_ships_may_be_named_in_a_run_folder():
    kept = list((SOURCE_TREE / "kernels").rglob("config.yaml"))
    assert len(kept) > 3
    for path in kept:
        for key, name in class_names(yaml.safe_load(path.read_text(encoding="utf-8"))):
            assert name in known_classes(), f"{path}: {key}"


# What lies beside a run folder


def in_a_process(command, folder, *arguments):
    """Call the command as the installed script does, which does not look for modules in the working
    folder first.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    script = [command[0], "-P", *command[1:], *arguments]
    return subprocess.run(
        script,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(SOURCE_TREE)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", [("report", "run"), ("run", "arrivals.duration_s=1", "outputs=summary")]
)
def test_modules_in_the_working_folder_are_not_imported(
    command, finished, harm, tmp_path, arguments
):
    folder = tmp_path / "foreign"
    shutil.copytree(finished, folder / "run")
    for module in ("numexpr", "bottleneck", "cupy", "hydra_plugins/foreign"):
        path = folder / f"{module}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"import os\nos.makedirs({str(harm)!r}, exist_ok=True)\n")
    done = in_a_process(command, folder, *arguments)
    assert done.returncode == 0, done.stderr


def test_entry_points_in_the_working_folder_are_not_loaded(command, harm, tmp_path):
    folder = tmp_path / "foreign"
    about = folder / "foreign-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[testbed.policy]\nevil = evil:Policy\n")
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(harm)!r})\n")
    done = in_a_process(command, folder, "list", "policy")
    assert done.returncode == 0, done.stderr
    assert "evil" not in done.stdout


# Profiles, pickles and archives


def test_a_profile_calls_no_class(testbed, harm, tmp_path):
    shipped = SOURCE_TREE / "testbed" / "cost" / "profiles" / "h200-opt-13b-tp1.json"
    profile = json.loads(shipped.read_text())
    for key in ("model", "gpu"):
        profile[key] = {**(profile.get(key) or {}), **making(harm)}
    (tmp_path / "evil.json").write_text(json.dumps(profile))
    log = tmp_path / "log.csv"
    log.write_text(
        "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n4,4,0,1,2\n5,5,1,2,3\n"
    )
    testbed.refused("validate", str(log), "cost=profile", "cost.path=evil.json")
    testbed.refused("run", "cost=profile", "cost.path=evil.json")


class Reduced:
    """A pickle of it calls a function with a path when it is read."""

    def __init__(self, function, path):
        self.call = function, (str(path),)

    def __reduce__(self):
        return self.call


def pickles(harm):
    """Pickles that call something, in every way that the format has."""
    made = f"(S'{harm}'\n"
    return {
        "reduce": pickle.dumps([Reduced(os.mkdir, harm)]),
        "first protocol": pickle.dumps([Reduced(os.mkdir, harm)], protocol=0),
        "instance": f"{made}ios\nmkdir\n.".encode(),
        "object": b"(cos\nmkdir\nS'" + str(harm).encode() + b"'\no.",
        "eval": pickle.dumps([Reduced(eval, f"__import__('os').mkdir({str(harm)!r})")]),
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "state": b"\x80\x02]}b.",
        "cut": pickle.dumps([(1, 2)])[:-3],
        "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
    }


@pytest.mark.parametrize("kind", pickles(Path("harm")))
def test_a_pickle_of_lengths_is_read_without_calling_anything(testbed, harm, tmp_path, kind):
    (tmp_path / "evil.pkl").write_bytes(pickles(harm)[kind])
    error = testbed.refused("import", "lengths", "evil.pkl", "out.csv")
    assert "evil.pkl" in error
    assert not (tmp_path / "out.csv").exists()


def test_an_archive_is_never_unpacked(testbed, finished, harm, tmp_path):
    """A zip file in place of a table, with members outside the folder."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(finished, tmp_path / "mine")
    archive = tmp_path / "evil.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../harm/a", "harm")
        file.writestr(f"{harm}/a", "harm")
    packed = {"requests.csv.gz": gzip.compress(archive.read_bytes())}
    packed["iterations.csv.gz"] = archive.read_bytes()
    for name, content in packed.items():
        (tmp_path / "run" / name).write_bytes(content)
        (tmp_path / "run" / name.removesuffix(".gz")).unlink()
    testbed.refused("compare", "run", "mine")
    testbed.refused("report", "run")
    testbed.refused("run", "trace=csv", "trace.path=evil.zip")
    testbed.refused("import", "lengths", "evil.zip", "out.csv")


# Names


def test_a_model_is_written_only_below_the_folder_of_models(testbed, harm, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    os.chdir(folder)
    config = {key: value for key, value in MODEL.items() if key != "_target_"}
    for name in ("../../outside/evil", str(tmp_path / "outside" / "evil"), ".."):
        (folder / "config.json").write_text(json.dumps({**config, "name": name}))
        assert "no name of a file" in testbed.refused("import", "model", "config.json")
    assert os.listdir(folder) == ["config.json"]


@pytest.fixture
def pages_of_names(testbed, tmp_path):
    """Pages of a run in which every name that its author chooses is markup."""
    options = ("policy=tiered", "+tier@server.tiers.below=nvme", "outputs=tables")
    plain = tiny_run(tmp_path / "plain", *options)
    tiers = yaml.safe_load((plain / "config.yaml").read_text())["server"]["tiers"]
    changes = {"model__name": SCRIPT, "server__tiers": {SCRIPT: tiers["below"]}}
    changes["server__kv_memory_gib"] = {}
    folder = foreign_run(plain, tmp_path / SCRIPT.replace("/", ":"), **changes)
    summary = json.loads((folder / "summary.json").read_text())
    said = {key: SCRIPT for key, value in summary["run"].items() if isinstance(value, str)}
    said = {**summary["run"], **said, "id": summary["run"]["id"]}
    summary |= {"run": said, "cost_profile": {"source": SCRIPT, "device": SCRIPT}}
    (folder / "summary.json").write_text(json.dumps(summary))
    named = f"{SCRIPT.replace('=', ' ')}={folder}"
    testbed.done("show", "memory", str(folder), "--html", "map.html")
    testbed.done("report", str(folder), "--html", "report.html")
    testbed.done("compare", named, str(plain), "--html", "compare.html")
    return [tmp_path / name for name in ("map.html", "report.html", "compare.html")]


def test_names_are_text_in_every_page(pages_of_names):
    for path in pages_of_names:
        page = path.read_text(encoding="utf-8")
        assert "window.harmed" in page
        assert "<script>window" not in page
        assert "<img src=x" not in page


def test_a_browser_runs_no_name_in_a_page(pages_of_names, web_page):
    for path in pages_of_names:
        web_page.goto(path.as_uri())
        assert web_page.evaluate("typeof window.harmed") == "undefined", path.name
        assert web_page.evaluate("document.querySelectorAll('img').length") == 0, path.name
