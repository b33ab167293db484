"""The options of this project as a config source of Hydra, which asks for one when a configuration
has it.
"""

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from testbed.core.model_files import model_names
from testbed.experiments.runs.choice_names import GROUPS, files_of, plug_ins_of
from testbed.experiments.runs.defaults_lists import PACKAGE
from testbed.experiments.runs.option_values import option_at, with_defaults

SCHEME = "testbed"
FOLDERS: set[str] = set()


class OwnOptions(ConfigSource):
    """Answers Hydra's questions for a folder of options, by their paths below it."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def available(self) -> bool:
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        return config_path in (*GROUPS, "engine") or Path(self.path, config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return option_at(Path(self.path), config_path.removesuffix(".yaml")) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        path = config_path.removesuffix(".yaml")
        option = option_at(Path(self.path), path)
        assert option is not None
        values = with_defaults(option, path.partition("/")[0])
        header = {"package": values.pop(PACKAGE, None)}
        return ConfigResult(self.provider, f"{SCHEME}://{path}", OmegaConf.create(values), header)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        is_of_files = results_filter in (None, ObjectType.CONFIG)
        files = (path.stem for path in Path(self.path, config_path).glob("*.yaml"))
        return sorted({*_names(config_path), *files}) if is_of_files else []


class OwnSearchPath(SearchPathPlugin):
    """Lets Hydra read the registered folders here."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for element in search_path.get_path():
            if element.path in FOLDERS:
                element.path = f"{SCHEME}://{element.path}"


def register(folder: Path) -> None:
    """Register both with Hydra, for a folder with a primary config. Folders of another program in
    this process stay Hydra's own.
    """
    FOLDERS.add(str(folder))
    Plugins.instance().register(OwnOptions)
    Plugins.instance().register(OwnSearchPath)


def _names(group: str) -> set[str]:
    if group == "model":
        return set(model_names())
    if group == "server":
        return set(files_of("gpu"))
    return {point.name for point in plug_ins_of(group)} if group in GROUPS else set()
