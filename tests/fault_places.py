"""Where a source can have a one-line fault: from its syntax tree by rule, or from the list in
tests/faults.toml.
"""

import ast
import tomllib
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ["testbed", "traces", "experiments", "kernels"]
OTHER = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
NO_PLACE = {"annotation", "returns", "decorator_list"}  # what a run does not depend on
NO_RESULT = (
    "strict",
    "flush",
)  # keywords: whether zip says that lengths differ, and when a line is printed


@dataclass(frozen=True)
class Fault:
    """Bytes of a source that another text takes the place of; `lines` are those of the
    statement.
    """

    file: str
    start: int
    stop: int
    lines: range
    new: str
    why: str = ""

    def __str__(self) -> str:
        old = (ROOT / self.file).read_bytes()[self.start : self.stop].decode()
        return (
            f"{self.file}:{self.lines.start}: {' '.join(old.split())} -> "
            f"{' '.join(self.new.split())}"
        )

    @property
    def text(self) -> bytes:
        """The whole source, with the fault."""
        text = (ROOT / self.file).read_bytes()
        return text[: self.start] + self.new.encode() + text[self.stop :]

    @property
    def meaning(self) -> str:
        """The same for two faults that are written differently."""
        return self.file + ast.dump(ast.parse(self.text))


def python_files(paths: list[str]) -> list[Path]:
    """Those below these paths, each once: rglob does not follow the links in testbed/."""
    return sorted(
        {
            file
            for name in paths
            for file in [*(ROOT / name).rglob("*.py"), ROOT / name]
            if file.is_file()
        }
    )


def faults_of(path: Path) -> Iterator[Fault]:
    """Every fault that this script can think of for a source."""
    text = path.read_bytes()
    begins = list(accumulate(map(len, text.splitlines(keepends=True)), initial=0))
    for old, new, lines in places(ast.parse(text), range(0)):
        start, stop = (
            begins[old.lineno - 1] + old.col_offset,
            begins[old.end_lineno - 1] + old.end_col_offset,
        )
        written = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
        yield Fault(str(path.relative_to(ROOT)), start, stop, lines, written)


def places(node: ast.AST, lines: range) -> Iterator[tuple[ast.AST, ast.AST, range]]:
    """Nodes of a tree, what may stand in their place, and the lines of the statement that they are
    part of.
    """
    if isinstance(node, ast.JoinedStr):  # a message
        return
    if isinstance(node, ast.stmt):
        body = getattr(node, "body", None)
        lines = range(
            node.lineno, max(node.lineno + 1, body[0].lineno) if body else node.end_lineno + 1
        )
    if isinstance(node, ast.keyword) and node.arg in NO_RESULT:
        return
    yield from ((old, new, lines) for old, new in wrong(node))
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in NO_PLACE:
                yield from places(child, lines)


def wrong(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What a tired programmer may have written instead, and in whose place."""
    other = copy(node)
    match node:
        case (
            ast.BinOp(left=ast.Constant(value=str()))
            | ast.BinOp(right=ast.Constant(value=str()) | ast.JoinedStr())
        ):
            return  # texts and paths: no program any more
        case ast.Compare(ops=[op]) | ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OTHER:
            vars(other).update(ops=[OTHER[type(op)]()], op=OTHER[type(op)]())
            yield node, other
        case ast.UnaryOp(op=ast.Not()):
            yield node, node.operand
        case ast.Constant(value=bool()):
            yield node, ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield node, ast.Constant(node.value + 1)
        case ast.Call(func=ast.Name(id="min" | "max") | ast.Attribute(attr="add_argument")):
            return  # numbers in any order, and names of one option
        case ast.Call(args=[first, second, *rest]) if not isinstance(second, ast.Starred):
            yield node, ast.Call(node.func, [second, first, *rest], node.keywords)
        case ast.If() | ast.While() | ast.IfExp():
            yield node.test, ast.UnaryOp(ast.Not(), node.test)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, ast.Pass()


def listed(kind: str) -> Iterator[Fault]:
    """The faults of tests/faults.toml, planted or equal, in whatever file their old text stands."""
    texts = {path: path.read_text() for path in python_files(SOURCES)}
    for entry in tomllib.loads(Path(__file__).with_name("faults.toml").read_text()).get(kind, ()):
        old, found = (
            entry["old"],
            [path for path, text in texts.items() for _ in range(text.count(entry["old"]))],
        )
        if len(found) != 1:
            print(f"faults.toml: {old!r} stands {len(found)} times in the sources; mend the list")
            continue
        before, file = texts[found[0]].partition(old)[0], str(found[0].relative_to(ROOT))
        first, start = before.count("\n") + 1, len(before.encode())
        lines = range(first, first + old.count("\n") + 1)
        yield Fault(file, start, start + len(old.encode()), lines, entry["new"], entry["why"])
