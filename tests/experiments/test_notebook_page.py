"""A notebook that shows pages of results, executed, exported as HTML and opened in a browser."""

import html
import json
import os
import re
import sys
from pathlib import Path

import pytest

KERNEL = "of-this-test"
CELLS = (
    "import testbed\n"
    "result = testbed.simulate(policy='paged', rate=2, duration_s=5)\n"
    "other = testbed.simulate(policy='contiguous_max', rate=2, duration_s=5)\n"
    "result",
    "result.memory_map(0, 3)",
    "result.compare(other, names=('<b>paged</b>', 'max'))",
)
TITLES = ("Run", "Paged, opt-13b", "Compared: <b>paged</b>; max")
FRAME = re.compile(r'<iframe [^>]*?srcdoc="([^"]*)"')
EVERY_TITLE = """[...document.querySelectorAll("iframe")].map(
    frame => frame.contentDocument.querySelector("h1").innerText)"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook with its outputs, and its path as HTML."""
    # Here, for their import takes a quarter of a second, in each worker
    nbformat, nbclient, nbconvert, _ = (
        pytest.importorskip(name, reason="the extra `test` installs it")
        for name in ("nbformat", "nbclient", "nbconvert", "ipykernel")
    )
    folder = tmp_path_factory.mktemp("notebook")
    kernel = folder / "jupyter" / "kernels" / KERNEL
    kernel.mkdir(parents=True)
    start = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    words = {"argv": start, "display_name": KERNEL, "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(words))
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    templates = Path(nbconvert.__file__).parents[4] / "share" / "jupyter"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", os.pathsep.join([str(folder / "jupyter"), str(templates)]))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        resources = {"metadata": {"path": str(folder)}}
        nbclient.NotebookClient(notebook, kernel_name=KERNEL, resources=resources).execute()
        page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    path = folder / "notebook.html"
    path.write_text(page, encoding="utf-8")
    return notebook, path


def test_a_cell_that_shows_a_result_has_one_output(executed):
    notebook, _ = executed
    for cell in notebook.cells:
        assert [output.output_type for output in cell.outputs] == ["execute_result"]
    assert "time to first token" in notebook.cells[0].outputs[0].data["text/plain"]


def test_an_exported_notebook_has_each_page_escaped_once(executed):
    _, path = executed
    text = path.read_text(encoding="utf-8")
    pages = [html.unescape(page) for page in FRAME.findall(text)]
    assert len(pages) == len(CELLS)
    for page, title in zip(pages, TITLES, strict=True):
        assert page.startswith("<!doctype html>")
        assert "&lt;!doctype" not in page
        assert f"<title>{html.escape(title)}" in page


def test_a_browser_draws_the_pages_of_a_notebook(executed, web_page):
    _, path = executed
    web_page.goto(path.as_uri(), wait_until="domcontentloaded")  # its own scripts need a network
    web_page.wait_for_function(f"({EVERY_TITLE}).length == {len(TITLES)}")
    shown = web_page.evaluate(EVERY_TITLE)
    assert len(shown) == len(TITLES)
    for words, title in zip(shown, TITLES, strict=True):
        assert words.startswith(title)
