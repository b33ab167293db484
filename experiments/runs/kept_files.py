"""Hydra over the options of experiments/conf, which are read once in a process.

Hydra copies the whole ConfigStore, reads every file again and composes its own part for each
configuration. `choices_of` does none of the three, and takes a fifth of the time; `hydra_session`
is Hydra itself, for words that concern Hydra, and for sweeps.
"""

import copy
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from hydra import initialize_config_dir, version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf, open_dict

from testbed.experiments.runs.choice_names import CONF

VERSION = "1.3"  # of Hydra's rules of composing
NO_LOGS = ("hydra/job_logging=none", "hydra/hydra_logging=none")  # Hydra writes none
POINTS_KEPT = 256  # some 0.2 MiB each
UNCHANGED = ("hydra", "main")  # providers of files: Hydra's package and experiments/conf


class KeptFiles(ConfigRepository):
    """Where Hydra looks for options: a file that ships is read once in a process; the files of a
    user and the ConfigStore are read for each configuration.
    """

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.provider not in UNCHANGED:
            return super().load_config(config_path)
        kept: ConfigResult | None = pickle.loads(_shipped(config_path))
        return kept

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeptFiles":
        """Hydra's copy for one configuration, which may get other sources; no source changes."""
        return copy.copy(self)


@cache
def _shipped(config_path: str) -> bytes:
    """What a file that ships says, pickled: a copy of it is a third of the time of deepcopy."""
    return pickle.dumps(ConfigRepository(_search_path()).load_config(config_path))


@cache
def _search_path() -> ConfigSearchPath:
    return create_config_search_path(str(CONF))


class KeptPoints(ConfigLoaderImpl):
    """Composes equal points of a sweep once, of the first POINTS_KEPT: Hydra composes each when it
    checks the sweep, and again when it launches the point in this process.
    """

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self.repository = KeptFiles(search_path)
        self._kept = dict[tuple[str, ...], DictConfig]()

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        """The configuration of a point of the only sweep of this session, for its caller alone."""
        words = tuple(sweep_overrides)
        if words in self._kept:
            return copy.deepcopy(self._kept[words])
        point = super().load_sweep_config(master_config, sweep_overrides)
        if len(self._kept) < POINTS_KEPT:
            self._kept[words] = copy.deepcopy(point)
        return point

    def __getstate__(self) -> dict[str, Any]:
        """For the process of another launcher, which composes its own points."""
        return self.__dict__ | {"_kept": {}}


@contextmanager
def hydra_session() -> Iterator[Hydra]:
    """Hydra, initialized for the options of experiments/conf."""
    with initialize_config_dir(str(CONF), job_name="testbed", version_base=VERSION):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        assert isinstance(hydra.config_loader, ConfigLoaderImpl)
        hydra.config_loader = KeptPoints(hydra.config_loader.config_search_path)
        yield hydra


def choices_of(name: str, overrides: Sequence[Override]) -> DictConfig:
    """The configuration of a name and overrides that neither sweep nor concern Hydra itself, as
    Hydra composes it, without Hydra's part.

    Hydra's public functions have no way to leave that part out, nor to keep files, hence the
    classes of `hydra._internal`, whose release pyproject.toml bounds.
    """
    version.setbase(VERSION)
    repository = CachingConfigRepository(KeptFiles(_search_path()))
    defaults = create_defaults_list(
        repository, name, [*overrides], prepend_hydra=False, skip_missing=False
    )
    loader = ConfigLoaderImpl(_search_path())
    config = loader._compose_config_from_defaults_list(defaults.defaults, repository)
    OmegaConf.set_struct(config, True)
    loader._apply_overrides_to_config(defaults.config_overrides, config)
    with open_dict(config):
        config.pop("hydra", None)
    return config
