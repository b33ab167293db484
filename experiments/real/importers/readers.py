"""The readers of others' profiles, by format."""

from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.real.importers import aiconfigurator, llmservingsim

READERS = (llmservingsim, aiconfigurator)


def reader_of(source: Path) -> Any:
    """The reader for the format of the source."""
    if not source.exists():
        raise InputError(
            key=source, problem="no such folder or file", remedy="give the folder of their tables"
        )
    for reader in READERS:
        if reader.is_here(source):
            return reader
    formats = ", ".join(reader.NAME for reader in READERS)
    raise InputError(
        key=source,
        problem=f"not a profile of {formats}",
        remedy=(
            "give the folder of their tables; a profile JSON of this project needs no import: "
            "cost=profile cost.path=FILE"
        ),
    )
