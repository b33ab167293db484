"""A Python file with plug-ins: renamed classes and modules are changed, what may be a renamed member is pointed out."""

import ast
import re
from collections.abc import Iterator

from testbed.core.renamed import kinds
from testbed.experiments.migration.edits import Edit, Migrated, Note, migrated

MEMBERS = ("policy", "scheduler", "sequence", "batch", "state", "plan")
# Old names that are ordinary words: as an attribute (`file.open`) they are rarely the API's.
ORDINARY = {
    "arrive", "end", "fill", "first", "join", "joined", "leave", "left", "lose", "open", "place", "second", "take",
}  # fmt: skip


def migrate_plug_in(text: str) -> Migrated:
    """Classes and modules by their new names, and a note for each line with a member's old name. Raises SyntaxError."""
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    imported = {name.name for node in imports if (node.module or "").startswith("testbed") for name in node.names}
    classes = {old: new for old, new in kinds()["class"].items() if old in imported}
    edits = [
        Edit(found.start(), old, new)
        for old, new in {**kinds()["module"], **classes}.items()
        for found in re.finditer(rf"\b{re.escape(old)}\b", text)
    ]
    return migrated(text, edits, _notes(text))


def _notes(text: str) -> Iterator[Note]:
    """The members that are defined or read by an old name; which object they belong to, only their author knows."""
    for number, line in enumerate(text.splitlines(), 1):
        for before, old in re.findall(r"(\.|\bdef )(\w+)", line):
            new = dict.fromkeys(kinds()[kind][old] for kind in MEMBERS if old in kinds()[kind])
            if new and (before == "def " or old not in ORDINARY):
                yield Note(number, f"{before}{old} may be one of the API's, which is called {' or '.join(new)} now")
