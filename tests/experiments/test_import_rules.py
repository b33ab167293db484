"""Who may import whom (DESIGN): core <- memory <- sched <- sim, core <- cost <- sim, and nothing back."""

import ast
from pathlib import Path

import pytest

import testbed

ROOT = Path(testbed.__file__).parent.parent
ALLOWED = {
    "testbed.core": {"testbed.core"},
    "testbed.memory": {"testbed.core", "testbed.memory"},
    "testbed.cost": {"testbed.core", "testbed.cost"},
    "testbed.sched": {"testbed.core", "testbed.memory", "testbed.cost", "testbed.sched"},
    "testbed.sim": {"testbed.core", "testbed.memory", "testbed.sched", "testbed.cost", "testbed.sim"},
    "testbed.contract": {"testbed.core", "testbed.memory", "testbed.contract"},
    "traces": {"testbed.core", "traces"},
    "kernels": {"testbed.core", "testbed.memory", "testbed.sched", "testbed.cost", "kernels"},
    "kernels.engine": {
        "testbed.core", "testbed.memory", "testbed.sched", "testbed.cost", "testbed.sim", "testbed.metrics", "traces",
        "kernels",
    },
}  # fmt: skip
ONLY_IN = {
    "simpy": ("testbed/sim",),
    "cupy": ("kernels",),
    "torch": ("kernels",),
    "hydra": ("experiments",),
    "omegaconf": ("experiments",),
    "matplotlib": ("experiments", "kernels/ladder/draw.py"),
    "hypothesis": ("tests",),
}
OURS = ("testbed", "traces", "kernels", "experiments")


def imports(path):
    """Modules that a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def sources(package):
    """A package's files, but for those of packages in it that have rules of their own."""
    inner = [ROOT / other.replace(".", "/") for other in ALLOWED if other.startswith(f"{package}.")]
    found = sorted((ROOT / package.replace(".", "/")).rglob("*.py"))
    return [path for path in found if not any(path.is_relative_to(folder) for folder in inner)]


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_lies_below_them(package):
    for path in sources(package):
        for module in imports(path):
            if module.partition(".")[0] in OURS:
                parts = module.split(".")
                owner = ".".join(parts[:2]) if parts[0] == "testbed" else parts[0]
                assert owner in ALLOWED[package], f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_stay_where_they_belong(library):
    for package in [*OURS, *ALLOWED]:
        for path in sources(package):
            if not str(path.relative_to(ROOT)).startswith(ONLY_IN[library]):
                used = {module.partition(".")[0] for module in imports(path)}
                assert library not in used, f"{path.relative_to(ROOT)} imports {library}"


def test_the_engine_needs_no_simpy():
    """A GPU's machine may lack it: what the engine imports, or imports through others, does without."""
    open_files = [*sources("kernels.engine"), *sources("traces"), ROOT / "testbed/sim/arrivals.py"]
    seen = set()
    while open_files:
        path = open_files.pop()
        if path in seen:
            continue
        seen.add(path)
        for module in imports(path):
            assert module.partition(".")[0] not in ("simpy", "hydra", "omegaconf"), f"{path} imports {module}"
            file = ROOT / f"{module.replace('.', '/')}.py"
            open_files += [file] if file.exists() else []
    assert ROOT / "testbed/sim/recorder.py" in seen
