"""`testbed import-lengths`, `-model`, `-profile` and `migrate`: files of others, or of an earlier
version, as ours.
"""

import ast
import gzip
import json
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.core.renamed import kinds
from testbed.cost.sections import check_profile, dump
from testbed.experiments.runs.whole_files import whole, write_text

MEMBERS = ("policy", "scheduler", "sequence", "batch", "state", "plan")
# Old names that are ordinary words: as an attribute (`file.open`) they are rarely the API's.
ORDINARY = {
    "arrive",
    "end",
    "fill",
    "first",
    "join",
    "joined",
    "leave",
    "left",
    "lose",
    "open",
    "place",
    "second",
    "take",
}


def import_lengths(options: Namespace) -> None:
    """Write the CSV, and report whether its rows are known; reading the pickle runs no code."""
    from testbed.traces.csv_lengths import PUBLISHED, read_pairs, rows_sha256, write_lengths

    rows = read_pairs(options.path)
    write_lengths(options.out, rows)
    means = f"{rows.prompt_len.mean():.2f} and {rows.output_len.mean():.2f}"
    digest = rows_sha256(rows)
    print(f"{len(rows):,} requests, means of {means} tokens: {options.out}")
    print(
        f"SHA-256 of the rows {digest}: {PUBLISHED.get(digest, 'not rows that this project knows')}"
    )


def import_model(options: Namespace) -> None:
    """Write the model file and print its size."""
    model = model_of(options.config, options.name)
    out = options.out or Path("model") / f"{file_name(model.name, options)}.yaml"
    out.parent.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in asdict(model).items() if value is not None}
    lines = [
        "_target_: testbed.core.specs.ModelSpec",
        *(f"{key}: {json.dumps(one)}" for key, one in values.items()),
    ]
    write_text(
        out, ("\n".join(lines) if out.suffix == ".yaml" else json.dumps(values, indent=1)) + "\n"
    )
    print(
        f"{model.name}: {model.num_params / 1e9:.2f} billion weights, "
        f"{model.kv_bytes_per_token / 1024:g} KiB of KV "
        f"cache a token, up to {model.max_len:,} tokens -> {out}"
    )
    if out.suffix == ".yaml" and out.parent.name == "model":
        print(
            f"testbed run --config-dir {out.parent.parent.absolute()} model={out.stem} server=..."
        )


def file_name(name: str, options: Namespace) -> str:
    """A model's name as that of a file. Raises InputError for one that the config.json gives and
    that leads into another folder.
    """
    if not options.name and (name in (".", "..") or Path(name).name != name):
        raise InputError(
            f"{options.config}: its model is called {name!r}, which is no name of a file (give "
            f"--name or --out)"
        )
    return name


def import_profile(options: Namespace) -> None:
    """Write the profile; print missing sections of the source, and the extrapolation beyond its
    grid.
    """
    from testbed.experiments.importers.imported import Requested, add_all_reduces

    link = options.link and options.link * 1e9
    latency_s = options.all_reduce_us and options.all_reduce_us * 1e-6
    types = options.kv_dtype_bytes, options.weight_bits
    requested = Requested(
        options.model, options.gpu, options.tensor_parallel, link, latency_s, options.nccl, *types
    )
    found = reader_of(options.source).read(options.source, requested)
    add_all_reduces(found, options.source, requested)
    profile = found.profile()
    check_profile(profile, options.source)
    write_text(options.out, dump(profile))
    print(
        f"{found.source}: {found.model.name} on {found.num_gpus} x {found.device} -> {options.out}"
    )
    for name, section in profile["sections"].items():
        print(f"  {name}: {len(section['points']):,} points")
    for note in dict.fromkeys(found.notes):
        print(f"  {note}")


def reader_of(source: Path) -> Any:
    """The reader for the format of the source."""
    from testbed.experiments.importers import aiconfigurator, llmservingsim

    readers = (llmservingsim, aiconfigurator)
    if not source.exists():
        raise InputError(f"{source}: no such folder or file (give the folder of their tables)")
    for reader in readers:
        if reader.is_here(source):
            return reader
    known = ", ".join(reader.NAME for reader in readers)
    raise InputError(
        f"{source}: not a profile of {known} (give the folder of their tables; a profile JSON of "
        f"this "
        "project needs no import: cost=profile cost.path=FILE)"
    )


class Edit(NamedTuple):
    """`old` stands at character `start` of the text and becomes `new`."""

    start: int
    old: str
    new: str


def _found(text: str, names: Mapping[str, str], pattern: str, start: int = 0) -> Iterator[Edit]:
    """The old names where `pattern`, in which they replace {}, matches."""
    for old, new in names.items():
        for match in re.finditer(pattern.format(re.escape(old)), text):
            yield Edit(start + match.start(), old, new)


def in_yaml(text: str) -> Iterator[Edit]:
    """Keys of a run's config or of a choice's file; options and module names in its texts. Raises
    YAMLError.
    """
    for root in yaml.compose_all(text, Loader=yaml.SafeLoader):
        pairs = root.value if isinstance(root, yaml.MappingNode) else []
        is_trace = any(
            key.value == "_target_" and str(n.value).startswith("testbed.traces.")
            for key, n in pairs
        )
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
    imported = {
        name.name
        for node in imports
        if (node.module or "").startswith("testbed")
        for name in node.names
    }
    classes = {old: new for old, new in kinds()["class"].items() if old in imported}
    return _found(text, {**kinds()["module"], **classes}, r"\b{}\b")


def by_hand(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a plug-in with a member's old name, and why; which object it belongs to, only their
    author knows.
    """
    for number, line in enumerate(text.splitlines(), 1):
        for before, old in re.findall(r"(\.|\bdef )(\w+)", line):
            new = dict.fromkeys(kinds()[kind][old] for kind in MEMBERS if old in kinds()[kind])
            if new and (before == "def " or old not in ORDINARY):
                yield (
                    number,
                    f"{before}{old} may be one of the API's, which is called {' or '.join(new)} "
                    f"now",
                )


READERS: dict[str, Callable[[str], Iterator[Edit]]] = {
    ".yaml": in_yaml,
    ".yml": in_yaml,
    ".csv": in_csv,
    ".json": in_profile,
    ".py": in_plug_in,
}


def migrate(options: Namespace) -> None:
    """Read all files before the first is written, then print the changes of each."""
    for path, (text, edits) in [(path, read(path)) for path in options.files]:
        notes = sorted(set(by_hand(text))) if path.suffix == ".py" else []
        for edit in edits:
            print(f"{path}:{text.count(chr(10), 0, edit.start) + 1}: {edit.old} -> {edit.new}")
        for line, reason in notes:
            print(f"{path}:{line}: change by hand: {reason}")
        if edits:
            out = path if options.in_place else path.with_name(f"{path.name}.new")
            for start, old, new in reversed(edits):
                assert text.startswith(old, start), f"{old!r} does not stand at {start}"
                text = text[:start] + new + text[start + len(old) :]
            content = (
                gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
            )
            with whole(out) as temporary:
                temporary.write_bytes(content)
            print(f"{path}: {len(edits)} names changed -> {out}")
        elif not notes:
            print(f"{path}: nothing to rename")


def read(path: Path) -> tuple[str, list[Edit]]:
    """The text of a file, and its old names in order."""
    reader = READERS.get(Path(path.stem if path.suffix == ".gz" else path.name).suffix)
    if reader is None:
        raise InputError(
            f"{path}: not a file that can be migrated; give one that ends in {', '.join(READERS)}"
        )
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        return text, sorted(set(reader(text)))
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; give its path from the folder where you run"
        ) from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"{path}: not a sound gzip file ({error}); copy it again") from None
    except (yaml.YAMLError, SyntaxError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: cannot be read: {' '.join(str(error).split())}; correct it first"
        ) from None
