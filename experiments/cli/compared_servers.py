"""Several servers' commands in one line: the words of each, and what one of them cannot do, which
is refused before another one is simulated.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.cli.served_command import ServedCommand
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.error_lines import as_refusal
from testbed.experiments.runs.notes import OnNote, no_note
from testbed.experiments.runs.sweep_words import sweep_points
from testbed.run.build import build
from testbed.run.config import RunConfig
from testbed.run.override_words import key_of

SPECULATION = "speculation"
OF_DRAFTS = (f"{SPECULATION}.", f"acceptance@{SPECULATION}.")


def asked_of(
    servers: Mapping[str, ServedCommand], words: Sequence[str], folders: Sequence[Path] = ()
) -> dict[str, Sequence[str]]:
    """The words that each server is asked with: beside one that drafts, a server without drafts has
    none of the words on them.
    """
    others = [word for word in words if not key_of(word).startswith(OF_DRAFTS)]
    if len(servers) < 2 or len(others) == len(words):
        return dict.fromkeys(servers, words)
    first = sweep_points(others)[0]
    drafts = {name: _drafts(server, first, folders) for name, server in servers.items()}
    nothing_drafts = not any(drafts.values())
    return {name: words if drafts[name] or nothing_drafts else others for name in servers}


def words_of_point(
    server: ServedCommand,
    point: Sequence[str],
    own: Sequence[str],
    folders: Sequence[Path],
    on_note: OnNote,
) -> list[str]:
    """The words that run a point of a sweep. A refusal begins with `own`: what only this point has,
    of the words and of its server's command.
    """
    try:
        return server.words(point, folders, on_note)
    except InputError as error:
        if not own:
            raise
        raise error.within(", ".join(own)) from error


def check_built(words: Sequence[str]) -> RunConfig:
    """The configuration of a run. Raises InputError if its parts do not go together; nothing is
    simulated.
    """
    try:
        config = configured(words)
        build(config)
        return config
    except (Exception, SystemExit) as error:  # of a plug-in
        raise as_refusal(error) from error


def _drafts(server: ServedCommand, words: Sequence[str], folders: Sequence[Path]) -> bool:
    return SPECULATION in map(key_of, server.words(words, folders, no_note))
