"""The store of the experiments' runs: configures runs by the paper's protocol, and simulates each only once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from testbed.config import RunConfig
from testbed.experiments.runs.choice_names import FILE_READERS
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.own_gpu import on_gpu_of
from testbed.experiments.runs.run_folder import measure
from testbed.identity import run_id
from testbed.parts import Part


class Measured(NamedTuple):
    """A run's summary, and the name of its folder."""

    summary: dict[str, Any]
    run_id: str


@dataclass(frozen=True)
class RunStore:
    """Run folders are in `folder`; `lengths` maps embedded length models to files that are replayed in their place.

    `overrides` follow those of every run, and so replace the studies' options. `profile` is a file whose GPU replaces
    the paper's.
    """

    folder: Path
    lengths: tuple[tuple[str, str], ...] = ()
    overrides: tuple[str, ...] = ()
    profile: str | None = None

    def config(self, overrides: Sequence[str], values: Mapping[str, Any] | None = None) -> RunConfig:
        """The configuration of a run by the paper's protocol: Hydra overrides, then single values by dotted key."""
        config = self._replayed(configured(("+protocol=sosp23", *overrides, *self.overrides), values))
        return on_gpu_of(self.profile, config) if self.profile else config

    def measure(self, overrides: Sequence[str], values: Mapping[str, Any] | None = None) -> Measured:
        """The summary of a run, from its folder if it is complete there."""
        return self.measured(self.config(overrides, values))

    def measured(self, config: RunConfig) -> Measured:
        """The summary of a run by its whole configuration."""
        return Measured(measure(config, self.folder), run_id(config))

    def _replayed(self, config: RunConfig) -> RunConfig:
        files, embedded = dict(self.lengths), str(config.trace.parameters.get("model"))
        if embedded not in files:
            return config
        kept = {key: value for key, value in config.trace.parameters.items() if key != "model"}
        return replace(config, trace=Part(FILE_READERS[embedded], {"path": files[embedded], **kept}))
