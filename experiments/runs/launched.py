"""Jobs on the launcher of `hydra/launcher=...`: this process, joblib, Ray or submitit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from testbed.core.errors import InputError
from testbed.experiments.runs.kept_files import NO_LOGS, hydra_session
from testbed.experiments.runs.progress import one_line

OF_LAUNCHERS = ("hydra/", "hydra.")


def launched(words: Sequence[str], jobs: Sequence[Callable[[], Any]], folder: Path) -> list[Any]:
    """The results of the jobs, in their order, from the launcher that the words name.

    words: Hydra's own, such as hydra/launcher=joblib. A job and its result must pickle. folder:
    where launchers write, as below a sweep's. Raises InputError for words that Hydra refuses.
    """
    places = (f"hydra.sweep.dir='{folder}'", "hydra.sweep.subdir=.")
    hydra_words = ["hydra.output_subdir=null", *NO_LOGS, *places, *words]
    try:
        with _launcher(hydra_words, _Numbered(jobs)) as launcher:
            returned = launcher.launch([[*hydra_words] for _ in jobs], initial_job_idx=0)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(one_line(error)) from error
    return [job.return_value for job in returned]


class _Numbered:
    """Calls the job of a number, which the job's configuration has."""

    def __init__(self, jobs: Sequence[Callable[[], Any]]) -> None:
        self.jobs = list(jobs)

    def __call__(self, _: DictConfig) -> Any:
        job = self.jobs[HydraConfig.get().job.num]
        state = Singleton.get_state()
        GlobalHydra.instance().clear()  # else the job could not compose a configuration
        try:
            return job()
        finally:
            Singleton.set_state(state)


@contextmanager
def _launcher(words: list[str], task: Callable[[DictConfig], Any]) -> Iterator[Launcher]:
    with hydra_session() as hydra:
        config = hydra.compose_config(None, words, RunMode.MULTIRUN, with_log_configuration=False)
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(config))
        yield Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task, config=config
        )
