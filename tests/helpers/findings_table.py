"""The table of findings/README.md, made from the headers of the scripts:
`python tests/helpers/findings_table.py` writes it.
"""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "findings"
FIELDS = ("behaviour", "package", "date", "guess")
HEAD = """# Findings

Behaviour of libraries that a good guess gets wrong. Each script installs pinned packages in a
temporary folder, runs them on valid input, prints the guess and the result, and fails if the result
has changed. They run outside CI: `sh findings/NAME.sh`.

| script | behaviour | package | seen on | the guess that it refutes |
|---|---|---|---|---|
"""


def header(script: Path) -> dict[str, str]:
    """The fields of a script's first comments, by name."""
    lines = [line[2:] for line in script.read_text().splitlines() if line.startswith("# ")]
    fields = dict(line.split(": ", 1) for line in lines if line.split(":")[0] in FIELDS)
    assert set(fields) == set(FIELDS), f"{script.name} lacks a field"
    return fields


def page() -> str:
    """The whole page."""
    rows = []
    for script in sorted(FOLDER.glob("*.sh")):
        of = header(script)
        cells = [f"[{script.stem}]({script.name})", *(of[name] for name in FIELDS)]
        rows.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(page())
