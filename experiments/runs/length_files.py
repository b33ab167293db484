"""Length files that are replayed in place of embedded length models."""

from pathlib import Path

from testbed.core.errors import InputError

FILE_READERS = {
    "sharegpt": {"_target_": "traces.csv_lengths.CsvLengths"},
    "alpaca": {"_target_": "traces.csv_lengths.CsvLengths"},
    "wmt": {"_target_": "traces.wmt.WmtCsv"},
    "chat": {"_target_": "traces.chat.ChatCsv"},
    "mooncake": {"_target_": "traces.mooncake.MooncakeJsonl"},
    "agent_sessions": {"_target_": "traces.agent_sessions.AgentSessions"},
}


def length_file(text: str) -> tuple[str, str]:
    """NAME=FILE, or FILE for sharegpt."""
    name, equals, path = text.partition("=")
    if not equals or Path(text).is_file():
        name, path = "sharegpt", text
    if name not in FILE_READERS:
        raise InputError(f"--lengths {text}: no trace {name!r}; choose from {', '.join(FILE_READERS)}")
    if not Path(path).is_file():
        raise InputError(f"--lengths {text}: no such file as {path}")
    return name, path
