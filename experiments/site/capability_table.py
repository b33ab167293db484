"""The table of a policy's capabilities in the guide, from their protocols.

`python -m testbed.experiments.site.capability_table` writes it again.
"""

import re
from inspect import getdoc
from pathlib import Path

import testbed
from testbed.memory.capabilities import METHODS, NEEDS

GUIDE = Path(testbed.__file__).parent / "memory" / "PLUG_INS.md"
HEAD = "| capability | methods | what it says of the policy |\n|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)+")


def table() -> str:
    """The table in Markdown, a row for each protocol."""
    return HEAD + "".join(map(_row, METHODS))


def guide(text: str) -> str:
    """The guide with the present table."""
    return TABLE.sub(lambda _: table(), text)


def _row(protocol: type) -> str:
    methods = ", ".join(f"`{name}`" for name in METHODS[protocol])
    meaning = " ".join((getdoc(protocol) or "").split("\n\n")[0].split())
    needs = " and ".join(f"`{needed.__name__}`" for needed in NEEDS.get(protocol, ()))
    return f"| `{protocol.__name__}` | {methods} | {meaning}{f' Needs {needs}.' * bool(needs)} |\n"


if __name__ == "__main__":
    GUIDE.write_text(guide(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
