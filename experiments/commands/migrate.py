"""`testbed migrate`: a user's files, from the names of version 0.1.0 to those of 0.2.0."""

import gzip
from collections.abc import Callable
from pathlib import Path

import yaml

from testbed.core.errors import InputError
from testbed.experiments.commands.parser import Parser
from testbed.experiments.migration.data_files import migrate_csv, migrate_profile, migrate_yaml
from testbed.experiments.migration.edits import Migrated
from testbed.experiments.migration.plug_ins import migrate_plug_in
from testbed.experiments.runs.whole_files import whole

READERS: dict[str, Callable[[str], Migrated]] = {
    ".yaml": migrate_yaml,
    ".yml": migrate_yaml,
    ".csv": migrate_csv,
    ".json": migrate_profile,
    ".py": migrate_plug_in,
}


def parser() -> Parser:
    this = Parser(
        "migrate",
        "Rename what version 0.2.0 renamed (the table is in CHANGELOG.md): keys of a YAML file, columns of a CSV or "
        "CSV.gz, sections of a cost profile (JSON), names in a plug-in (Python). Lines that need a change by hand are "
        "printed.",
    )
    this.add_argument("files", nargs="+", type=Path, metavar="FILE", help="YAML, CSV, CSV.gz, JSON or Python")
    this.add_argument("--in-place", action="store_true", help="change the files; without it FILE.new is written")
    return this


def main(argv: list[str]) -> None:
    """Read all files before the first is written, then print the changes of each."""
    options = parser().parse_args(argv)
    for path, result in [(path, read(path)) for path in options.files]:
        for line, old, new in result.changes:
            print(f"{path}:{line}: {old} -> {new}")
        for line, reason in result.by_hand:
            print(f"{path}:{line}: change by hand: {reason}")
        if result.changes:
            out = path if options.in_place else path.with_name(f"{path.name}.new")
            with whole(out) as temporary:
                temporary.write_bytes(_packed(path, result.text))
            print(f"{path}: {len(result.changes)} names changed -> {out}")
        elif not result.by_hand:
            print(f"{path}: nothing to rename")


def read(path: Path) -> Migrated:
    """What becomes of a file."""
    reader = READERS.get(Path(path.stem if path.suffix == ".gz" else path.name).suffix)
    if reader is None:
        raise InputError(f"{path}: not a file that can be migrated; give one that ends in {', '.join(READERS)}")
    try:
        content = path.read_bytes()
        return reader((gzip.decompress(content) if path.suffix == ".gz" else content).decode())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give its path from the folder where you run") from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"{path}: not a sound gzip file ({error}); copy it again") from None
    except (yaml.YAMLError, SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}; correct it first") from None


def _packed(path: Path, text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
