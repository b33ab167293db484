"""The page of a policy's capabilities, from their protocols."""

from inspect import getdoc

from testbed.memory.capabilities import METHODS, NEEDS

HEAD = """# Capabilities of a policy

A policy has a capability if it defines the methods of it (`testbed/memory/protocols.py`).

| capability | methods | meaning |
|---|---|---|
"""


def page() -> str:
    """The page in Markdown, a row for each protocol."""
    return HEAD + "".join(map(_row, METHODS))


def _row(protocol: type) -> str:
    methods = ", ".join(f"`{name}`" for name in METHODS[protocol])
    meaning = " ".join((getdoc(protocol) or "").split("\n\n")[0].split())
    needs = " and ".join(f"`{needed.__name__}`" for needed in NEEDS.get(protocol, ()))
    return f"| `{protocol.__name__}` | {methods} | {meaning}{f' Needs {needs}.' * bool(needs)} |\n"
