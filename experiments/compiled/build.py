"""Makes the compiled build and takes it away: in a copy of the sources, put in place only when it is whole."""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_config_var

from experiments.compiled.paths import FOLDER, MANIFEST, ROOT, SUFFIX, digest_of
from experiments.compiled.sources import compiled_sources, opened

MYPY_INI = """[mypy]
strict = True
warn_return_any = False
[mypy-experiments.*]
ignore_missing_imports = True
"""
SHOWN = 12  # lines of what the compiler complains about


class BuildError(ValueError):
    """The build cannot be made; one line, like wrong input."""


def build(root: Path = ROOT, folder: Path = FOLDER) -> int:
    """Compile the simulator that lies at `root` into `folder`; the number of modules. Takes some minutes."""
    _check_tools()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        shutil.copytree(root / "testbed", work / "testbed", ignore=shutil.ignore_patterns(".*", "__pycache__"))
        sources = compiled_sources(work / "testbed")
        manifest = "".join(_manifest_line(path, work) for path in sources)
        for path in sources:
            path.write_text(opened(path.read_text(encoding="utf-8")), encoding="utf-8")
        _compile([str(path.relative_to(work)) for path in sources], work)
        _put_in_place(work / "out", manifest, folder)
    return len(sources)


def _check_tools() -> None:
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        raise BuildError('compiling needs mypyc: pip install "kvcache-testbed[compile]"')
    compiler = (os.environ.get("CC") or get_config_var("CC") or "cc").split()[0]
    if sys.platform != "win32" and shutil.which(compiler) is None:
        raise BuildError(f"compiling needs a C compiler: {compiler} is not there; install one, or name yours by CC=...")


def remove(folder: Path = FOLDER) -> bool:
    """Take the build away; False where there was none."""
    there = folder.exists()
    if there:
        shutil.rmtree(folder)
    return there


def _manifest_line(path: Path, root: Path) -> str:
    """What the sources were, with the time stamps that copying has kept."""
    stat = path.stat()
    return f"{digest_of(str(path))} {stat.st_size} {stat.st_mtime_ns} {path.relative_to(root)}\n"


def _compile(sources: list[str], work: Path) -> None:
    (work / "mypy.ini").write_text(MYPY_INI, encoding="utf-8")
    script = Path(__file__).with_name("setup_mypyc.py")
    command = [sys.executable, str(script), "-q", "build_ext", "--build-lib", "out", "--", *sources]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode:
        complaints = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        raise BuildError("mypyc or the C compiler failed: " + ("; ".join(complaints[-SHOWN:]) or done.stderr[-500:]))


def _put_in_place(out: Path, manifest: str, folder: Path) -> None:
    """By one renaming: nobody sees half a build."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for path in out.rglob(f"*{SUFFIX}"):
        target = new / path.relative_to(out)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (new / MANIFEST).write_text(manifest, encoding="utf-8")
    remove(folder)
    new.rename(folder)
