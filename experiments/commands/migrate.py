"""`testbed migrate`: a user's files, from the names of version 0.1.0 to those of 0.2.0."""

import gzip
from pathlib import Path

import yaml

from testbed.core.errors import InputError
from testbed.experiments.commands.parser import Parser
from testbed.experiments.migration.renaming import READERS, Edit, by_hand, edited
from testbed.experiments.runs.whole_files import whole


def main(argv: list[str]) -> None:
    """Read all files before the first is written, then print the changes of each."""
    this = Parser(
        "migrate",
        "Rename what version 0.2.0 renamed (the table is in CHANGELOG.md): keys of a YAML file, columns of a CSV or "
        "CSV.gz, sections of a cost profile (JSON), names in a plug-in (Python). Lines that need a change by hand are "
        "printed.",
    )
    this.add_argument("files", nargs="+", type=Path, metavar="FILE", help="YAML, CSV, CSV.gz, JSON or Python")
    this.add_argument("--in-place", action="store_true", help="change the files; without it FILE.new is written")
    options = this.parse_args(argv)
    for path, (text, edits) in [(path, read(path)) for path in options.files]:
        notes = sorted(set(by_hand(text))) if path.suffix == ".py" else []
        for edit in edits:
            print(f"{path}:{text.count(chr(10), 0, edit.start) + 1}: {edit.old} -> {edit.new}")
        for line, reason in notes:
            print(f"{path}:{line}: change by hand: {reason}")
        if edits:
            out = path if options.in_place else path.with_name(f"{path.name}.new")
            content = edited(text, edits).encode()
            with whole(out) as temporary:
                temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
            print(f"{path}: {len(edits)} names changed -> {out}")
        elif not notes:
            print(f"{path}: nothing to rename")


def read(path: Path) -> tuple[str, list[Edit]]:
    """The text of a file, and its old names in order."""
    reader = READERS.get(Path(path.stem if path.suffix == ".gz" else path.name).suffix)
    if reader is None:
        raise InputError(f"{path}: not a file that can be migrated; give one that ends in {', '.join(READERS)}")
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        return text, sorted(set(reader(text)))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give its path from the folder where you run") from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"{path}: not a sound gzip file ({error}); copy it again") from None
    except (yaml.YAMLError, SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}; correct it first") from None
