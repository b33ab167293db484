"""`testbed import-profile`: layer times that somebody else measured, as a profile of ours."""

import json
import re
from pathlib import Path
from typing import Any

from experiments.commands.arguments.import_profile import parser
from experiments.importers import aiconfigurator, llmservingsim, own
from experiments.importers.imported import Asked
from experiments.runs.whole_files import write_text
from testbed.core.errors import InputError

READERS = (llmservingsim, aiconfigurator, own)
INNER_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")


def main(argv: list[str]) -> None:
    """Write the profile, and say what the source does not hold and how far outside its grid it was read."""
    options = parser().parse_args(argv)
    found = reader_of(options.source).read(options.source, Asked(options.model, options.gpu, options.tensor_parallel))
    profile = found.profile()
    write_text(options.out, dump(profile))
    print(f"{found.source}: {found.model.name} on {found.num_gpus} x {found.device} -> {options.out}")
    for name, section in profile["sections"].items():
        print(f"  {name}: {len(section['points']):,} points")
    for note in dict.fromkeys(found.notes):
        print(f"  {note}")


def reader_of(source: Path) -> Any:
    """The reader that knows what the source is."""
    if not source.exists():
        raise InputError(f"{source}: no such folder or file; give the path of a profile")
    for reader in READERS:
        if reader.is_here(source):
            return reader
    known = ", ".join(reader.NAME for reader in READERS)
    raise InputError(f"{source}: not a profile of {known}; give the folder that holds their tables")


def dump(profile: Any) -> str:
    """JSON with one measured point a line."""
    text = json.dumps(profile, indent=1)
    return INNER_LIST.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"
