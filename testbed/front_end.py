"""The front end: what turns names into configurations, keeps run folders and shows results."""

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from testbed.config import RunConfig
from testbed.core.errors import InputError

if TYPE_CHECKING:
    from testbed.result import Result


class FrontEnd(Protocol):
    """What turns names into configurations and keeps run folders: the package that declares `testbed.front_end`."""

    def configure(self, overrides: Sequence[str], options: Mapping[str, Any]) -> RunConfig:
        """The configuration of words of the command line and options by name."""

    def measure(self, config: RunConfig, folder: Path) -> dict[str, Any]:
        """The summary of a run, from its folder below `folder` if it is complete there."""

    def draw(self, result: "Result") -> Any:
        """Memory, batch and latencies of a run, as a matplotlib figure."""

    def show(self, summary: Mapping[str, Any]) -> str:
        """A summary as text for people."""

    def view(self, name: str, *arguments: Any) -> Any:
        """What `name` of `testbed.experiments.notebook.views` returns: a page, a path."""


def front_end() -> FrontEnd:
    found = entry_points(group="testbed.front_end")
    if not found:
        raise InputError("testbed is not installed here, so no choice has a name: pip install -e .")
    front: FrontEnd = next(iter(found)).load()()
    return front
