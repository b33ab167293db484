"""Where the experiments run: composes configs, simulates them, and never simulates one twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from experiments.runs.choices import understood
from experiments.runs.identity import run_id
from experiments.runs.known_choices import CONF
from experiments.runs.length_files import FILE_READERS
from experiments.runs.misspelt import keys_explained
from experiments.runs.model_group import register_models
from experiments.runs.point import complete, run_into


class Measured(NamedTuple):
    """What a run gave, and the name of its folder."""

    summary: dict[str, Any]
    run_id: str


@dataclass(frozen=True)
class Lab:
    """Run folders lie below `folder`; `lengths` are files to replay in place of embedded length models, by name.

    `overrides` come after those of every run: another choice than the studies have made.
    """

    folder: Path
    lengths: tuple[tuple[str, str], ...] = ()
    overrides: tuple[str, ...] = ()

    def config(self, overrides: Sequence[str], values: Mapping[str, Any] | None = None) -> DictConfig:
        """The config of a run by the paper's protocol: Hydra overrides, then single values by dotted key."""
        config = composed("run", ("+protocol=sosp23", *overrides, *self.overrides)).copy()
        for key, value in (values or {}).items():
            OmegaConf.update(config, key, value, force_add=False)
        self._replay(config)
        return config

    def measure(self, overrides: Sequence[str], values: Mapping[str, Any] | None = None) -> Measured:
        """The summary of a run, from its folder if it is complete there."""
        return self.measured(self.config(overrides, values))

    def measured(self, config: DictConfig) -> Measured:
        """The summary of a run by its whole config."""
        name = run_id(config)
        folder = self.folder / name
        return Measured(complete(folder) or run_into(config, folder), name)

    def _replay(self, config: DictConfig) -> None:
        """Put a length file in the place of an embedded model of the same name."""
        files, embedded = dict(self.lengths), str(config.trace.get("model"))
        if embedded not in files:
            return
        kept = {key: value for key, value in config.trace.items() if key not in ("_target_", "model")}
        config.trace = {**FILE_READERS[embedded], "path": files[embedded], **kept}


@cache
def composed(name: str, overrides: tuple[str, ...]) -> DictConfig:
    """A config from the tree; composing is slow, so each is composed once."""
    register_models()
    with keys_explained(overrides), initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        return compose(name, overrides=understood(overrides))
