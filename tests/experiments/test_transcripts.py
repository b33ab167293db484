"""Command lines, and word for word what they print and write: tests/golden/transcripts, renewed by
--update-golden.

`$ testbed ...` is called, and leaves its exit code where that is not 0; `$ python ...` is executed;
`$ cat FILE ...` shows files but for scripts, styles, pictures and quoted files. Numbers have five
digits, blanks and lines of tables are short; runs know no commit and no hash of the code.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from kept import GOLDEN, check_text

import testbed as package
from testbed import description, identity

ROOT = Path(__file__).parents[2]
FOLDER = GOLDEN / "transcripts"
KEPT = sorted(FOLDER.glob("*.txt"))
NO_TEXT = re.compile(
    r"(?s)(?<=<style>).*?(?=</style>)|(?<=<script>).*?(?=</script>)|(?<=base64,)[^\"]+|<pre.*?</pre>"
)
WIDTH = 240


@pytest.fixture
def shell(testbed, tmp_path, monkeypatch, capsys):
    """Carry out a line of a transcript; what it prints."""
    monkeypatch.setattr(
        description,
        "software",
        lambda: dict.fromkeys(("version", "commit", "simulator"), "as here"),
    )
    monkeypatch.setattr(identity, "code_hash", lambda: "as here")
    shutil.copytree(FOLDER / "inputs", tmp_path, dirs_exist_ok=True)
    for name in ("experiments", "kernels"):
        (tmp_path / name).symlink_to(ROOT / name)
    names = {"testbed": package, "Path": Path}

    def printed(line):
        command, _, rest = line.partition(" ")
        if command == "testbed":
            code, output, error = testbed(*shlex.split(rest))
            return output + error + (f"[{code}]\n" if code else "")
        capsys.readouterr()
        try:
            if command == "cat":
                return "\n".join(NO_TEXT.sub("", Path(name).read_text()) for name in rest.split())
            exec(rest, names)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
        return capsys.readouterr().out

    return lambda line: legible(
        printed(line).replace(str(tmp_path), "HERE").replace(tmp_path.name, "HERE")
    )


def legible(text):
    """Numbers with five digits, one blank for many, lines of a bearable length; nothing of what few
    have installed.
    """
    text = re.sub(r"([ ─━])\1+", r"\1", text)
    text = re.sub(r"\d+\.\d{5,}(e-?\d+)?", lambda number: f"{float(number[0]):.5g}", text)
    lines = (line.rstrip() for line in text.splitlines() if not line.startswith("AISimulate"))
    return "\n".join(
        line if len(line) <= WIDTH else f"{line[:WIDTH]} ... {len(line)}" for line in lines if line
    )


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_commands_print_and_write_what_is_kept(shell, request, path):
    if "needs" in path.stem:
        pytest.importorskip(path.stem.rpartition("_")[2])
    lines = [line for line in path.read_text().splitlines() if line.startswith(("$ ", "## "))]
    found = (
        "\n".join(
            f"{line}\n{shell(line[2:])}".rstrip() if line[0] == "$" else f"\n{line}"
            for line in lines
        )
        + "\n"
    )
    check_text(found, request, "transcripts", path.name)
