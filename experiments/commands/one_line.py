"""Every error as one line that names the culprit."""

import re

EXIT_BAD_INPUT = 2


def one_line(error: BaseException) -> str:
    """The message of an error, with what it is about in front where the message alone would not say."""
    cause = error.__cause__
    if _is_a(error, "InstantiationException") and cause is not None and not _is_traceback(cause):
        key, message = _full_key(str(error)), one_line(cause)
        return message if not key or message.startswith(key) else f"{key}: {message}"
    missing = re.search(r"Missing mandatory value: \S+\s+full_key: (\S+)", str(error))
    if missing:
        return f"{missing[1]} is not given; say {missing[1]}=..."
    if _is_a(error, "InputError") or _is_a(error, "HydraException") or _is_a(error, "OmegaConfBaseException"):
        return _flat(str(error).partition("Config search path")[0])
    if isinstance(error, OSError):
        return _flat(f"{error.filename or 'output'}: {error.strerror or error}")
    if isinstance(error, ValueError) or _is_a(error, "StaleBuildError"):
        return _flat(str(error))
    if isinstance(error, SystemExit):
        return f"a plug-in calls sys.exit({error.code!r}); it must raise an error instead"
    return _flat(f"{type(error).__name__}: {error}")


def _is_a(error: BaseException, kind: str) -> bool:
    """Whether it is an exception of this name of Hydra's, OmegaConf's or our own.

    None is imported for that: the first two take time, and a stale build refuses the last.
    """
    return any(
        one.__name__ == kind and one.__module__.startswith(("hydra", "omegaconf", "testbed"))
        for one in type(error).__mro__
    )


def _is_traceback(cause: BaseException) -> bool:
    """Whether the cause is the text that a worker process sends home instead of what had happened there."""
    return type(cause).__name__.strip("_") == "RemoteTraceback"


def _full_key(message: str) -> str:
    """Hydra puts the config key that failed on the last line."""
    last = message.splitlines()[-1]
    return last.removeprefix("full_key:").strip() if last.startswith("full_key:") else ""


def _flat(message: str) -> str:
    """The lines of a message on one; a list that Hydra prints one item a line becomes comma-separated."""
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    text = ""
    for line in lines:
        if line.startswith(("\t", "    ")) and text:
            text += (" " if text.endswith(":") else ", ") + line.strip()
        else:
            text += (" " if text.endswith((".", ":")) else "; " if text else "") + line.strip()
    return text.rstrip("; ") or "unknown error"
