"""Allowed imports (DESIGN): core <- memory <- contract, sched <- engine, core <- cost <-
contract, speculation <- sched, engine, and nothing back.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

import testbed

ROOT = Path(testbed.__file__).parent.parent
ALLOWED = {
    "testbed.core": {"testbed.core"},
    "testbed.vllm.releases": {"testbed.core"},
    "testbed.vllm": {
        "testbed.core",
        "testbed.cost",
        "testbed.speculation",
        "testbed.vllm",
    },
    "testbed.memory": {"testbed.core", "testbed.memory", "testbed.vllm.releases"},
    "testbed.cost": {"testbed.core", "testbed.cost"},
    "testbed.speculation": {"testbed.core", "testbed.cost", "testbed.speculation"},
    "testbed.sched": {
        "testbed.core",
        "testbed.memory",
        "testbed.cost",
        "testbed.speculation",
        "testbed.sched",
        "testbed.vllm.releases",
    },
    "testbed.engine": {
        "testbed.core",
        "testbed.memory",
        "testbed.checks.contract",
        "testbed.sched",
        "testbed.cost",
        "testbed.speculation",
        "testbed.engine",
    },
    "testbed.checks.contract": {
        "testbed.core",
        "testbed.memory",
        "testbed.cost",
        "testbed.run.oracles",
        "testbed.checks.contract",
    },
    "testbed.traces": {"testbed.core", "testbed.traces"},
    "testbed.kernels": {
        "testbed.core",
        "testbed.memory",
        "testbed.sched",
        "testbed.cost",
        "testbed.kernels",
    },
    "testbed.kernels.engine": {
        "testbed.serving",  # the desk is its process of an engine
        "testbed.run.oracles",
        "testbed.core",
        "testbed.memory",
        "testbed.sched",
        "testbed.cost",
        "testbed.engine",
        "testbed.run.metrics",
        "testbed.traces",
        "testbed.kernels",
        "testbed.run.build",
        "testbed.run.config",
        "testbed.run.description",
        "testbed.run.summaries",
        "testbed.checks.contract",
        "testbed.speculation",
        "testbed.run.speculating",
    },
}
ONLY_IN = {
    "simpy": ("testbed/engine",),
    "cupy": ("testbed/kernels",),
    "torch": (
        "testbed/kernels",
        "testbed/experiments/real/lockstep",
        "testbed/experiments/real/vllm_engine/in_vllm",
    ),  # the others drive vLLM, which is built on it
    "hydra": ("testbed/experiments",),
    "omegaconf": ("testbed/experiments",),
    "matplotlib": ("testbed/experiments",),
    "hypothesis": ("tests",),
}
OURS = ("testbed", "testbed.traces", "testbed.kernels", "testbed.experiments")


def statements(node):
    """Those in a node, and in these; expressions, which have no statements, are not entered."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


@cache
def imports(path):
    """Modules that a file imports, wherever it does so."""
    nodes = list(statements(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return [*names, *(node.module or "" for node in nodes if isinstance(node, ast.ImportFrom))]


def place(package):
    """The folder of a package, or the file of a module."""
    folder = ROOT / package.replace(".", "/")
    return folder if folder.is_dir() else folder.with_suffix(".py")


def sources(package):
    """The files of a package or a module, but for those in it that have rules of their own."""
    inner = [place(other) for other in ALLOWED if other.startswith(f"{package}.")]
    own = place(package)
    paths = sorted(own.rglob("*.py")) if own.is_dir() else [own]
    return [path for path in paths if not any(path.is_relative_to(other) for other in inner)]


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_lower_packages(package):
    for path in sources(package):
        for module in imports(path):
            if module.partition(".")[0] == "testbed":
                allowed = any(f"{module}.".startswith(f"{name}.") for name in ALLOWED[package])
                assert allowed, f"{path.relative_to(ROOT)} imports {module}"


def test_testbed_modules_do_not_import_experiments_or_kernels():
    """Names become configurations through an installed front end, not through an import of
    experiments.
    """
    rooms = [path for room in ("run", "study", "checks") for path in sources(f"testbed.{room}")]
    for path in [*(ROOT / "testbed").glob("*.py"), *rooms]:
        above = [
            module
            for module in imports(path)
            if module.startswith(("testbed.experiments", "testbed.kernels"))
        ]
        assert not above, f"{path.relative_to(ROOT)} imports {above}"


def test_libraries_are_imported_only_where_allowed():
    for path in {path for package in [*OURS, *ALLOWED] for path in sources(package)}:
        for library in {module.partition(".")[0] for module in imports(path)} & ONLY_IN.keys():
            where = str(path.relative_to(ROOT))
            assert where.startswith(ONLY_IN[library]), f"{where} imports {library}"


def test_engine_does_not_import_simpy():
    """A GPU's machine may lack it: what the engine imports, or imports through others, does
    without.
    """
    open_files = [
        *sources("testbed.kernels.engine"),
        *sources("testbed.traces"),
        ROOT / "testbed/engine/arrivals.py",
    ]
    seen = set()
    while open_files:
        path = open_files.pop()
        if path in seen:
            continue
        seen.add(path)
        for module in imports(path):
            assert module.partition(".")[0] not in ("simpy", "hydra", "omegaconf"), (
                f"{path} imports {module}"
            )
            file = ROOT / f"{module.replace('.', '/')}.py"
            open_files += [file] if file.exists() else []
    assert ROOT / "testbed/engine/recorder.py" in seen
