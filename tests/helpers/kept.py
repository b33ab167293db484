"""Texts that are compared with those kept in tests/golden; a deliberate change is `pytest
--update-golden`.
"""

from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def check_text(text, request, folder="texts", name=None):
    """The text is that of tests/golden/FOLDER/NAME, by default TEST.txt; --update-golden writes the
    file.
    """
    path = GOLDEN / folder / (name or f"{request.node.name.removeprefix('test_')}.txt")
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name}: a deliberate change is pytest --update-golden"
