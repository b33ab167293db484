"""`testbed migrate`: a user's files, from the names of version 0.1.0 to those of 0.2.0 (testbed/core/renamed.toml)."""

import ast
import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from testbed.core.errors import InputError
from testbed.core.renamed import kinds
from testbed.experiments.commands.terminal import Parser
from testbed.experiments.runs.whole_files import whole

MEMBERS = ("policy", "scheduler", "sequence", "batch", "state", "plan")
# Old names that are ordinary words: as an attribute (`file.open`) they are rarely the API's.
ORDINARY = {
    "arrive", "end", "fill", "first", "join", "joined", "leave", "left", "lose", "open", "place", "second", "take",
}  # fmt: skip


class Edit(NamedTuple):
    """`old` stands at character `start` of the text and becomes `new`."""

    start: int
    old: str
    new: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made."""
    parts, place = [], 0
    for start, old, new in sorted(set(edits)):
        assert text[start : start + len(old)] == old, f"{old!r} does not stand at {start}"
        parts += [text[place:start], new]
        place = start + len(old)
    return "".join([*parts, text[place:]])


def _found(text: str, names: Mapping[str, str], pattern: str, start: int = 0) -> Iterator[Edit]:
    """The old names where `pattern`, in which they replace {}, matches."""
    for old, new in names.items():
        for match in re.finditer(pattern.format(re.escape(old)), text):
            yield Edit(start + match.start(), old, new)


def in_yaml(text: str) -> Iterator[Edit]:
    """Keys of a run's config or of a choice's file; options and module names in its texts. Raises YAMLError."""
    for root in yaml.compose_all(text, Loader=yaml.SafeLoader):
        pairs = root.value if isinstance(root, yaml.MappingNode) else []
        is_trace = any(key.value == "_target_" and str(n.value).startswith("testbed.traces.") for key, n in pairs)
        for key, node in _scalars(root, "trace." if is_trace else ""):
            start, source = node.start_mark.index, text[node.start_mark.index : node.end_mark.index]
            if not key:
                yield from _found(source, kinds()["option"], r"\b{}(?==)", start)
                yield from _found(source, kinds()["module"], r"\b{}\b", start)
            elif key in kinds()["option"]:
                old, new = (name.rpartition(".")[2] for name in (key, kinds()["option"][key]))
                yield Edit(text.index(old, start + node.value.rfind(old)), old, new)


def _scalars(node: yaml.Node, above: str) -> Iterator[tuple[str, yaml.ScalarNode]]:
    if isinstance(node, yaml.ScalarNode):
        yield "", node
    for entry in node.value if isinstance(node, yaml.CollectionNode) else ():
        if isinstance(entry, yaml.Node):
            yield from _scalars(entry, above)
        else:
            key, value = entry
            yield f"{above}{key.value}", key
            yield from _scalars(value, f"{above}{key.value}.")


def in_csv(text: str) -> Iterator[Edit]:
    """The header's column names."""
    return _found(text.partition("\n")[0], kinds()["column"], r'(?<![^,"]){}(?![^,"\r])')


def in_profile(text: str) -> Iterator[Edit]:
    """The names of a cost profile's sections, which are keys, and of their axes, which are not."""
    yield from _found(text, kinds()["section"], r'(?<="){}(?="\s*:)')
    yield from _found(text, kinds()["axis"], r'(?<="){}(?="\s*[],])')


def in_plug_in(text: str) -> Iterator[Edit]:
    """Classes and modules of a Python file. Raises SyntaxError."""
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    imported = {name.name for node in imports if (node.module or "").startswith("testbed") for name in node.names}
    classes = {old: new for old, new in kinds()["class"].items() if old in imported}
    return _found(text, {**kinds()["module"], **classes}, r"\b{}\b")


def by_hand(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a plug-in with a member's old name, and why; which object it belongs to, only their author knows."""
    for number, line in enumerate(text.splitlines(), 1):
        for before, old in re.findall(r"(\.|\bdef )(\w+)", line):
            new = dict.fromkeys(kinds()[kind][old] for kind in MEMBERS if old in kinds()[kind])
            if new and (before == "def " or old not in ORDINARY):
                yield number, f"{before}{old} may be one of the API's, which is called {' or '.join(new)} now"


READERS: dict[str, Callable[[str], Iterator[Edit]]] = {
    ".yaml": in_yaml, ".yml": in_yaml, ".csv": in_csv, ".json": in_profile, ".py": in_plug_in,
}  # fmt: skip


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
