"""What `testbed.compiled` says of a build, read without importing `testbed`, which a stale build refuses."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_SOURCE = Path(__file__).parents[2] / "testbed" / "compiled.py"
_SPEC = spec_from_file_location("testbed_compiled_alone", _SOURCE)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)

ROOT, FOLDER = Path(_MODULE.ROOT), Path(_MODULE.FOLDER)
MANIFEST: str = _MODULE.MANIFEST
SUFFIX: str = _MODULE.SUFFIX
digest_of = _MODULE.digest_of
