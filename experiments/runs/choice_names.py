"""The options of a config group, without Hydra: shipped files, shipped models, user folders,
plug-ins.

This module does not import Hydra, so that lists and help are fast.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.core.errors import InputError
from testbed.core.model_files import model_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CONF = Path(__file__).parents[1] / "conf"
GROUPS = (
    "policy",
    "eviction",
    "scheduler",
    "order",
    "preemption",
    "beams",
    "cost",
    "trace",
    "arrivals",
    "router",
    "handover",
    "speculation",
    "acceptance",
    "model",
    "server",
    "gpu",
    "system",
    "protocol",
    "software",
    "store",
    "load",
    "tier",
)
KEYS = {  # the words that select an option, if they are not the group's name
    "eviction": "eviction@policy.eviction",
    "acceptance": "acceptance@speculation.acceptance",
    "system": "+system",
    "protocol": "+protocol",
    "store": "store@policy.store",
    "load": "load@policy.load",
    "tier": "+tier@server.tiers.NAME",
}
CUSTOM = "custom"
CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # MODULE:CLASS, as the command line names one
SERVER_OF = re.compile(r"(?P<gpu>.+)-x(?P<num_gpus>[1-9]\d*)")  # h200-x2: two GPUs as one server
# The line of an option's file that names its class
CLASS_OF_FILE = re.compile(r"_target_: (?P<name>[\w.]+)\s*(#.*)?$")
# Of a model that ships and has no file, and with gpu=NAME: its other values suit any GPU
ANY_SERVER = "h200"
HIDDEN = "of-"  # server/of-NAME: the default server of a model
ENTRY_POINTS = "testbed.{}"
FILE_READERS = {
    "sharegpt": "testbed.traces.csv_lengths.CsvLengths",
    "alpaca": "testbed.traces.csv_lengths.CsvLengths",
    "wmt": "testbed.traces.wmt.WmtCsv",
    "chat": "testbed.traces.chat.ChatCsv",
    "mooncake": "testbed.traces.mooncake.MooncakeJsonl",
    "agent_sessions": "testbed.traces.agent_sessions.AgentSessions",
}


def files_of(group: str, folders: Sequence[Path] = ()) -> dict[str, Path]:
    """The YAML files of a group by name, those of user folders included."""
    paths = [path for root in (CONF, *folders) for path in sorted((root / group).glob("*.yaml"))]
    return {path.stem: path for path in paths}


def names_of(group: str, folders: Sequence[Path] = ()) -> list[str]:
    """Every name that the group can be set to, without plug-ins."""
    registered = model_names() if group == "model" else files_of("gpu") if group == "server" else ()
    names = {name for name in files_of(group, folders) if not name.startswith(HIDDEN)}
    return sorted(names.union(registered))


def is_named(group: str, name: str, folders: Sequence[Path] = ()) -> bool:
    """True if the group can be set to a name without a plug-in: one that is listed, the folder of a
    model's config.json, or a server of several GPUs that ship.
    """
    if name in names_of(group, folders):
        return True
    if group == "model":
        return config_in(name) is not None
    return group == "server" and gpus_of_server(name) is not None


def config_in(folder: str) -> Path | None:
    """The config.json of a model's folder, by its path; None if it is no such folder."""
    path = Path(folder) / "config.json"
    return path if path.is_file() else None


def gpus_of_server(name: str) -> tuple[str, int] | None:
    """The GPU and how many of it a server has that is named so, such as h200-x2; None: it has
    another name.
    """
    match = SERVER_OF.fullmatch(name)
    if match is None or match["gpu"] not in files_of("gpu"):
        return None
    return match["gpu"], int(match["num_gpus"])


def plug_ins_of(group: str) -> "list[EntryPoint]":
    """The entry points that installed packages declare for a group, by name."""
    from importlib.metadata import entry_points  # slow, and help does not need it

    return sorted(entry_points(group=ENTRY_POINTS.format(group)), key=lambda point: point.name)


def plug_in_class(group: str, name: str) -> str | None:
    """MODULE:CLASS of a part that does not ship: the name itself, or that of an installed plug-in;
    None of any other name.
    """
    if CLASS.fullmatch(name):
        return name
    if not name or (CONF / group / f"{name}.yaml").is_file():
        return None
    return {point.name: point.value for point in plug_ins_of(group)}.get(name)


def length_file(text: str) -> tuple[str, str]:
    """NAME=FILE, or FILE for sharegpt."""
    name, equals, path = text.partition("=")
    if not equals or Path(text).is_file():
        name, path = "sharegpt", text
    if name not in FILE_READERS:
        raise InputError(
            key="--lengths",
            value=text,
            problem=f"no trace {name!r}",
            remedy=f"choose from {', '.join(FILE_READERS)}",
        )
    if not Path(path).is_file():
        raise InputError(key="--lengths", value=text, problem=f"no such file as {path}")
    return name, path
