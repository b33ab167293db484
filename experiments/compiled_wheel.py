"""The wheel's build hook: with `TESTBED_COMPILE=1 pip install .` mypyc compiles the simulator's
modules.

Python prefers an extension module to the source in the same folder, so no other code changes.
Classes that plug-ins may extend are opened in a copy of the sources in which every line keeps its
number, so that tracebacks stay correct.
"""

import ast
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NEEDS = [
    "mypy>=1.19",
    "setuptools>=77",
    "numpy>=1.26",
    "simpy>=4.1",
]  # the last two for their types
PACKAGES = ("core", "memory", "sched", "cost", "engine")
INTERPRETED = {
    "core/config_model.py": "pydantic reads the annotations of its models",
    "core/errors.py": "its exceptions extend built-in ones",
    "core/hf_config.py": "no code in it is hot, and mypyc does not support its starred indexes",
    "core/hf_fields.py": "the same",
    "core/hf_layers.py": "the same",
    "core/hf_weights.py": "the same",
    "core/layers.py": "pydantic reads the annotations of its models",
    "core/specs.py": "pydantic reads the annotations of its models",
    "core/units.py": "its annotations have marks, which the compiler drops",
    "memory/protocols.py": "compiled protocols cannot be looked for in an object",
    "sched/protocols.py": "the same",
    "engine/audit.py": (
        "it checks the types of plug-ins' answers, for which the compiler has other messages"
    ),
    "sched/vllm_v1.py": "AsyncVllmV1 passes keywords on, which mypyc takes for one argument",
    "engine/simulation.py": "the same",
    "engine/clients.py": "it accepts any object with submit() and close(); one event per request",
}
# Classes of the hot path that no plug-in extends and no code copies: closed, so that method calls
# need no look-up.
CLOSED = {
    "SequenceGroup",
    "Batch",
    "Plan",
    "Tracked",
    "Outputs",
    "PackedRows",
    "ExponentialSampling",
    "SampledChecks",
    "SnapshotTimes",
    "Changes",
    "Audience",
    "Departures",
    "PendingForks",
    "Engine",
    "Flight",
    "SimulatedExecutor",
    "SimAlarm",
    "SimClock",
    "Span",
}
EXTENDED = {"Workload"}  # the only value class with a subclass
REQUESTED = {
    "MemoryPolicy",
    "Capabilities",
    "EvictionOrder",
    "PreemptionRule",
    "CostModel",
}  # answers of plug-ins are Any: our checks report errors
PROTOCOLS = ("memory/protocols.py", "sched/protocols.py")  # plug-ins answer these calls too
VALUES = {
    "NamedTuple",
    "Enum",
    "dict",
    "Event",
}  # bases of classes that the compiler does not make native
OPEN = "@mypyc_attr(allow_interpreted_subclasses=True)"
IMPORT = "import typing; from testbed.compiled import mypyc_attr, settle"


class CompiledWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Does nothing unless TESTBED_COMPILE is set."""

    def requested(self) -> bool:
        """Whether the environment requests a compiled wheel."""
        return os.environ.get("TESTBED_COMPILE", "0") not in ("", "0")

    def dependencies(self) -> list[str]:
        """The packages that compiling needs besides hatchling."""
        return NEEDS if self.requested() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the extension modules to the wheel."""
        if not self.requested():
            return
        if version == "editable":
            self.app.abort(
                "TESTBED_COMPILE: an editable install is not compiled (pip install . without -e)"
            )
        self.work = TemporaryDirectory()
        built = compiled(Path(self.root, "testbed"), Path(self.work.name))
        build_data["force_include"].update((str(path), name) for name, path in built)
        build_data |= {"pure_python": False, "infer_tag": True}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiler's folder."""
        if self.requested():
            self.work.cleanup()


def compiled(testbed: Path, work: Path) -> Iterator[tuple[str, Path]]:
    """Compile the package's extension modules in the folder `work`: (name in the wheel, path) of
    each.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution

    links = [
        path.name for path in testbed.iterdir() if path.name in ("kernels", "traces", "experiments")
    ]
    shutil.copytree(testbed, work / "testbed", ignore=shutil.ignore_patterns("__pycache__", *links))
    sources = compiled_sources(work / "testbed")
    for name in PROTOCOLS:
        path = work / "testbed" / name
        path.write_text(answering_anything(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in sources:
        path.write_text(opened(path.read_text(encoding="utf-8")), encoding="utf-8")
    with chdir(work):
        paths = [str(path.relative_to(work)) for path in sources]
        modules = mypycify(
            ["--ignore-missing-imports", *paths],
            opt_level="2",
            debug_level="0",
            group_name="testbed",
        )
        command: Any = Distribution({"name": "testbed", "ext_modules": modules}).get_command_obj(
            "build_ext"
        )
        command.build_lib = "out"
        command.ensure_finalized()
        command.run()
    out = work / "out"
    return ((str(path.relative_to(out)), path) for path in out.rglob("*") if path.is_file())


def compiled_sources(testbed: Path) -> list[Path]:
    """The modules of the package to compile; modules that read __file__ are left out."""
    paths = [path for package in PACKAGES for path in sorted((testbed / package).rglob("*.py"))]
    left_out = {testbed / name for name in INTERPRETED}
    return [
        path
        for path in paths
        if path not in left_out
        and path.name != "__init__.py"
        and "__file__" not in path.read_text(encoding="utf-8")
    ]


def answering_anything(text: str) -> str:
    """The source of a module of protocols, as the compiler reads it: all answers are Any."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            _answer_anything(lines, node)
    return "\n".join(lines).replace('"""\n\n', '"""\nimport typing\n', 1) + "\n"


def opened(text: str) -> str:
    """The source of a module, changed so that plug-ins may extend its classes; abstract methods are
    marked at its end. Added lines replace blank lines, which the formatter puts before every class
    and after the docstring.
    """
    classes = [
        node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and _is_open(node)
    ]
    if not classes:
        return text
    lines = text.splitlines()
    for node in classes:
        if node.name in REQUESTED:
            _answer_anything(lines, node)
    text = "\n".join([*lines, *map(_settled, classes)]) + "\n"
    text = text.replace('"""\n\n', f'"""\n{IMPORT}\n', 1).replace(
        "from abc import", "from testbed.compiled import"
    )
    above = rf"(?m)^\n(?=(?:[@#].*\n)*class (?:{'|'.join(node.name for node in classes)})\b)"
    return re.sub(above, f"{OPEN}\n", text)


def _is_open(node: ast.ClassDef) -> bool:
    """Whether the compiler makes it a native class that plug-ins may extend; value classes do not
    change.
    """
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    is_value = (
        any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        and node.name not in EXTENDED
    )
    return VALUES.isdisjoint(bases) and not is_value and node.name not in CLOSED


def _answer_anything(lines: list[str], node: ast.ClassDef) -> None:
    for hint in (method.returns for method in node.body if isinstance(method, ast.FunctionDef)):
        if hint is not None and ast.unparse(hint) != "None":
            line = lines[hint.lineno - 1]
            lines[hint.lineno - 1] = (
                line[: hint.col_offset] + "typing.Any" + line[hint.end_col_offset :]
            )


def _settled(node: ast.ClassDef) -> str:
    methods = [statement for statement in node.body if isinstance(statement, ast.FunctionDef)]
    abstract = [
        method.name
        for method in methods
        if "abstractmethod" in map(ast.unparse, method.decorator_list)
    ]
    return f"settle({', '.join([node.name, *map(repr, abstract)])})"
