"""What fits into a line: an error with its cause, and paths by the ends that distinguish them."""

from collections.abc import Sequence
from pathlib import Path

EXIT_BAD_INPUT = 2


def one_line(error: BaseException) -> str:
    """The message of an error, prefixed by its file or type where the message does not name them."""
    if isinstance(error, OSError):
        return _flat(f"{error.filename or 'output'}: {error.strerror or error}")
    if isinstance(error, SystemExit):
        return f"a plug-in: calls sys.exit({error.code!r}) (raise an error instead)"
    if isinstance(error, ValueError):
        return _flat(str(error))
    hydra = type(error).__module__.startswith(("hydra", "omegaconf"))  # without importing them
    return _flat(str(error).partition("Config search path")[0] if hydra else f"{type(error).__name__}: {error}")


def short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest end of each path that distinguishes it from the others."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return names


def _flat(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = " ".join(line if line.endswith((".", ":", ";")) else f"{line};" for line in lines)
    return text.rstrip("; ") or "unknown error"
