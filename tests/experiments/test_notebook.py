"""The notebook runs from top to bottom; what it shows and keeps of a result: pages, a run folder, a
trace, sessions.
"""

import gzip
import html
import io
import json
import runpy
from functools import partial
from pathlib import Path

import pytest
from refusals import refuses
from tiny_run import without_id

import testbed as front
from testbed.core.errors import InputError
from testbed.experiments.runs.choice_names import CONF
from testbed.memory.paged.paged import Paged

SHORT = {"rate": 2, "duration_s": 20}
PAIR = (Paged, {"block_size": 32})
NOTEBOOK = Path(__file__).parents[2] / "experiments" / "first_steps.ipynb"


def cells(kind):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """As a script of its code cells, with shorter runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    script = tmp_path / "first_steps.py"
    script.write_text("\n".join(cells("code")).replace("duration_s=300", "duration_s=60"))
    names = runpy.run_path(str(script), run_name="__main__")
    assert "paged" in repr(names["run"]).lower()
    assert names["run"].plot()._repr_png_().startswith(b"\x89PNG")
    recomputes = {
        name: names[name].summary["preemptions"]["recompute"] for name in ("careful", "bold")
    }
    assert recomputes["careful"] < recomputes["bold"]
    assert list(names["table"]["policy"].unique()) == [
        "contiguous_max",
        "contiguous_oracle",
        "paged",
        "Careful",
    ]
    picture = io.BytesIO()
    names["figure"].savefig(picture)
    assert len(names["figure"].axes[0].lines) == 4
    assert list(tmp_path.iterdir()) == [script]


def test_notebook_is_kept_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(cell.get("outputs", []) == [] for cell in notebook["cells"])


@pytest.fixture(scope="module")
def result():
    return front.simulate(policy=PAIR, **SHORT)


def test_saved_result_is_a_run_folder(result, testbed, tmp_path):
    assert result.save("kept") == result.save("kept")
    saved = json.loads((tmp_path / "kept" / "summary.json").read_text())
    assert without_id(saved) == without_id(json.loads(json.dumps(result.summary)))
    testbed.done("show", "memory", "kept", "--to", "5")
    refuses("kept: ", lambda: front.simulate(policy="paged", **SHORT).save("kept"))
    with pytest.raises(InputError, match=r"policy: "):
        front.simulate(policy=partial(Paged, block_size=32), **SHORT).save("other")
    assert not (tmp_path / "other").exists()


def test_pages_of_a_result(result, testbed, tmp_path):
    other = front.simulate(policy="contiguous_max", **SHORT)
    page = result.compare(other, names=("small", "max"))
    assert set(page.table["run"]) == {"small", "max"}
    assert "Compared: small; max" in page.save("compared.html").read_text()
    assert 'id="grid"' in result.memory_map(0, 10).save("map.html").read_text()
    shown = html.unescape(result._repr_html_())
    assert shown.startswith("<iframe")
    assert "<h2>Paged (block_size 32)</h2>" in shown
    for name in ("trace.json.gz", "trace.json"):
        result.timeline(name)
    packed = gzip.decompress((tmp_path / "trace.json.gz").read_bytes())
    assert packed == (tmp_path / "trace.json").read_bytes()


def test_sessions_of_a_replayed_file(result):
    path = CONF.parent / "examples" / "sessions.jsonl"
    words = (
        "arrivals=sessions",
        "arrivals.at_once=4",
        "model.max_len=131072",
        "workload.max_len=131072",
    )
    replayed = front.simulate(
        *words, f"trace.path={path}", trace="agent_sessions", model="llama-3-8b"
    )
    assert replayed.sessions["requests"].sum() == len(replayed.requests)
    assert (replayed.sessions["end_s"] > replayed.sessions["start_s"]).all()
    with pytest.raises(InputError, match=r"sessions: "):
        _ = result.sessions
