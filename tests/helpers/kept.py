"""Texts that are compared with those kept in tests/golden/kernels; a deliberate change is `pytest --update-golden`."""

from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "kernels"


def same_as_kept(request, name, lines):
    """Whether these lines are those of the file; --update-golden writes them."""
    path, text = GOLDEN / name, "\n".join([*map(str, lines), ""])
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return text == path.read_text()
