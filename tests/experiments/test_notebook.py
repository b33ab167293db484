"""The notebook runs from top to bottom and ends with a figure; every command that it shows is there."""

import ast
import io
import json
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "experiments" / "first_steps.ipynb"


def cells(kind):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def shown(source, names):
    """Run a cell as a notebook does; the value of its last line."""
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NOTEBOOK.name, "exec"), names)
    return eval(compile(last, NOTEBOOK.name, "eval"), names) if last else None


def test_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = {"__name__": "__main__"}
    values = [shown(source.replace("duration_s=300", "duration_s=100"), names) for source in cells("code")]
    assert "paged" in repr(values[0]).lower()
    assert values[2]._repr_png_().startswith(b"\x89PNG")
    assert values[3]["careful"] < values[3]["paged"]
    assert list(names["table"]["policy"].unique()) == ["contiguous_max", "contiguous_oracle", "paged", "Careful"]
    assert values[5]["contiguous_max"] < values[5]["paged"]
    picture = io.BytesIO()
    names["figure"].savefig(picture)
    assert len(names["figure"].axes[0].lines) == 4
    assert list(tmp_path.iterdir()) == []


def test_notebook_is_kept_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        assert cell.get("outputs", []) == []
