"""YAML, CSV and JSON files: keys, column names and section names."""

import re
from collections.abc import Iterator

import yaml

from testbed.core.renamed import kinds
from testbed.experiments.migration.edits import Edit, Migrated, migrated

Keys = Iterator[tuple[str, yaml.ScalarNode]]


def migrate_yaml(text: str) -> Migrated:
    """Keys of a run's config or of a choice's file; options and module names in its texts. Raises YAMLError."""
    edits: list[Edit] = []
    for root in yaml.compose_all(text, Loader=yaml.SafeLoader):
        nodes = list(_keys(root, _group(root)))
        edits += (edit for key, node in nodes for edit in _key_edits(text, key, node))
        edits += (edit for node in _texts(root) for edit in _text_edits(text, node))
    return migrated(text, edits)


def _group(root: yaml.Node) -> str:
    """The config group that a choice's file belongs to by its class; only traces have renamed keys."""
    target = next((value.value for key, value in _pairs(root) if key.value == "_target_"), "")
    return "trace." if str(target).startswith("testbed.traces.") else ""


def _pairs(node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
    return node.value if isinstance(node, yaml.MappingNode) else []


def _keys(node: yaml.Node, above: str) -> Keys:
    """Every key with its dotted name."""
    for key, value in _pairs(node):
        yield f"{above}{key.value}", key
        yield from _keys(value, f"{above}{key.value}.")


def _texts(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Every scalar that is a value."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    for inner in (value for _, value in _pairs(node)):
        yield from _texts(inner)
    if isinstance(node, yaml.SequenceNode):
        for inner in node.value:
            yield from _texts(inner)


def _key_edits(text: str, key: str, node: yaml.ScalarNode) -> Iterator[Edit]:
    new = kinds()["option"].get(key)
    if new is not None:
        old, last = key.rpartition(".")[2], new.rpartition(".")[2]
        yield Edit(text.index(old, node.start_mark.index + node.value.rfind(old)), old, last)


def _text_edits(text: str, node: yaml.ScalarNode) -> Iterator[Edit]:
    """An override such as trace.prefix=80, or the name of a module that moved."""
    start, source = node.start_mark.index, text[node.start_mark.index : node.end_mark.index]
    for old, new in kinds()["option"].items():
        yield from (Edit(start + found.start(), old, new) for found in re.finditer(rf"\b{re.escape(old)}(?==)", source))
    for old, new in kinds()["module"].items():
        yield from (Edit(start + found.start(), old, new) for found in re.finditer(rf"\b{re.escape(old)}\b", source))


def migrate_csv(text: str) -> Migrated:
    """The header's column names."""
    header = text.partition("\n")[0]
    names = re.finditer(r"[^,\"\r]+", header)
    columns = [(found.start(), found.group()) for found in names if found.group() in kinds()["column"]]
    return migrated(text, [Edit(start, old, kinds()["column"][old]) for start, old in columns])


def migrate_profile(text: str) -> Migrated:
    """The names of a cost profile's sections, which are keys, and of their axes, which are not."""
    edits: list[Edit] = []
    for kind, follows in (("section", r"\s*:"), ("axis", r"\s*[],]")):
        found = re.finditer(rf'"({"|".join(kinds()[kind])})"(?={follows})', text)
        edits += (Edit(one.start(1), one[1], kinds()[kind][one[1]]) for one in found)
    return migrated(text, edits)
