"""Whether a command prints its answer alone."""

from contextvars import ContextVar

QUIET = ContextVar("quiet", default=False)
