"""Which modules are compiled, and how the copies differ that the compiler reads."""

import ast
from pathlib import Path

PACKAGES = ("core", "memory", "sched", "cost", "sim")
INTERPRETED = {
    "core/errors.py": "its exceptions extend built-in ones",
    "memory/traced.py": "it takes any policy's traits, and passes on any attribute; only pictures use it",
    "sim/audit.py": "it looks at the types of what plug-ins say, which the compiler would refuse in its own words",
    "sim/open_loop.py": "whatever has submit() and close() may stand at its end; one event a request",
    "sched/planned_ahead.py": "a class to be named before a scheduler's own: multiple inheritance",
    "sched/vllm_v1.py": "AsyncVllmV1 is such a class",
}
# What no plug-in extends, nobody copies and every step meets: closed, calls to their methods need no look-up.
CLOSED = {
    "SequenceGroup",
    "Batch",
    "Plan",
    "Tracked",
    "Outputs",
    "PackedRows",
    "Engine",
    "Residents",
}
EXTENDED = {"Workload"}  # the one value that another one extends
ASKED = {"MemoryPolicy", "PreemptionRule", "CostModel"}  # what plug-ins answer is Any: our own checks say what is wrong
IMPORT = "import typing; from mypy_extensions import mypyc_attr"
OPEN = "@mypyc_attr(allow_interpreted_subclasses=True)"
VALUES = {"NamedTuple", "Enum", "dict", "Event"}  # bases of what is none of the compiler's own classes


def compiled_sources(testbed: Path) -> list[Path]:
    """The modules to compile of the package that lies there; one that asks where it lies is none."""
    found = [path for package in PACKAGES for path in sorted((testbed / package).rglob("*.py"))]
    left_out = {testbed / name for name in INTERPRETED}
    return [
        path
        for path in found
        if path not in left_out and path.name != "__init__.py" and "__file__" not in path.read_text(encoding="utf-8")
    ]


def opened(text: str) -> str:
    """A module whose classes plug-ins may extend, with every line where it was, so that tracebacks stay right.

    At its end the classes become abstract base classes again, as far as they were.

    What is added takes the place of blank lines, which the formatter puts before every class and after the docstring.
    """
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and _is_native(node)]
    if not classes:
        return text
    lines = text.splitlines()
    for node in classes:
        above = min(node.lineno, *(decorator.lineno for decorator in node.decorator_list), node.lineno) - 2
        while lines[above].startswith("#"):
            above -= 1
        if node.name not in CLOSED:
            _replace_blank(lines, above, OPEN)
        if node.name in ASKED:
            _answer_anything(lines, node)
    _replace_blank(lines, _head(tree).end_lineno or 0, IMPORT)
    extended = [node for node in classes if node.name not in CLOSED]
    return "\n".join([*lines, "from testbed.compiled import as_abc", *map(_as_abc, extended)]) + "\n"


def _answer_anything(lines: list[str], node: ast.ClassDef) -> None:
    """What the methods give is Any to whoever calls them."""
    for said in (one.returns for one in node.body if isinstance(one, ast.FunctionDef)):
        if said is not None and ast.unparse(said) != "None":
            line = lines[said.lineno - 1]
            lines[said.lineno - 1] = line[: said.col_offset] + "typing.Any" + line[said.end_col_offset :]


def _as_abc(node: ast.ClassDef) -> str:
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    abstract = [one.name for one in methods if "abstractmethod" in map(ast.unparse, one.decorator_list)]
    return f"as_abc({', '.join([node.name, *map(repr, abstract)])})"


def _is_native(node: ast.ClassDef) -> bool:
    """Whether the compiler makes it a class of its own: values (dataclasses, named tuples) stay what they are."""
    named = {part.id for base in node.bases for part in ast.walk(base) if isinstance(part, ast.Name)}
    named |= {part.attr for base in node.bases for part in ast.walk(base) if isinstance(part, ast.Attribute)}
    is_value = any("dataclass" in ast.unparse(one) for one in node.decorator_list) and node.name not in EXTENDED
    return VALUES.isdisjoint(named) and not is_value


def _head(tree: ast.Module) -> ast.stmt:
    """The docstring, or what comes from the future behind it."""
    second = tree.body[1]
    return second if isinstance(second, ast.ImportFrom) and second.module == "__future__" else tree.body[0]


def _replace_blank(lines: list[str], index: int, new: str) -> None:
    if lines[index]:
        raise ValueError(f"line {index + 1} is not blank but {lines[index]!r}: format the sources first")
    lines[index] = new
