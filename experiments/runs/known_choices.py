"""What a config group has to choose from, without Hydra: shipped files, shipped models, folders of one's own, plug-ins.

Nothing of Hydra is imported here, so that lists, help and tab completion answer at once.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from testbed.core.shapes import model_names

CONF = Path(__file__).parents[1] / "conf"
GROUPS = (
    "policy", "eviction", "scheduler", "preemption", "beams", "cost", "trace", "arrivals", "model", "server", "gpu",
    "system", "protocol",
)  # fmt: skip
CUSTOM = "custom"
MODEL_CLASS = "testbed.core.specs.ModelSpec"  # of the shapes that ship
ANY_SERVER = "h200"  # of a model that has none, and under gpu=NAME: its other values suit any GPU
HIDDEN = "of-"  # server/of-NAME: the server that belongs to a model, taken where none is named
ENTRY_POINTS = "testbed.{}"


def files_of(group: str, folders: Sequence[Path] = ()) -> dict[str, Path]:
    """The YAML files of a group by name, those of one's own folders included."""
    paths = [path for root in (CONF, *folders) for path in sorted((root / group).glob("*.yaml"))]
    return {path.stem: path for path in paths}


def names_of(group: str, folders: Sequence[Path] = ()) -> list[str]:
    """Every name that the group can be set to, plug-ins aside."""
    shipped = model_names() if group == "model" else []
    found = {name for name in files_of(group, folders) if not name.startswith(HIDDEN)}
    return sorted(found.union(shipped))


def plug_ins_of(group: str) -> list[EntryPoint]:
    """The entry points that installed packages declare for a group, by name."""
    return sorted(entry_points(group=ENTRY_POINTS.format(group)), key=lambda point: point.name)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question, or nothing where no known name is like this one."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
