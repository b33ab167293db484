"""The option of commands to print their answer alone."""

from contextvars import ContextVar

QUIET = ContextVar("quiet", default=False)
