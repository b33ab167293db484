"""Jobs on the launcher of `hydra/launcher=...`: this process, joblib, Ray or submitit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.compose import key_errors_explained, register_models
from testbed.experiments.runs.overrides import normalize

LAUNCHER = "hydra/launcher"
OF_LAUNCHERS = ("hydra/", "hydra.")


def launched(words: Sequence[str], jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of the jobs, in their order, from the launcher that the words name.

    words: of a configuration that composes; only the launcher reads them. A job and its result
    must pickle.
    """
    with _launcher(words, _Numbered(jobs)) as launcher:
        returned = launcher.launch([list(normalize(words))] * len(jobs), initial_job_idx=0)
    return [_result(job) for job in returned]


class _Numbered:
    """Calls the job of a number; the composed configuration says which."""

    def __init__(self, jobs: Sequence[Callable[[], Any]]) -> None:
        self.jobs = list(jobs)

    def __call__(self, _: DictConfig) -> Any:
        return self.jobs[HydraConfig.get().job.num]()


@contextmanager
def _launcher(words: Sequence[str], task: Callable[[DictConfig], Any]) -> Iterator[Launcher]:
    register_models()
    with (
        key_errors_explained(words),
        initialize_config_dir(str(CONF), job_name="testbed", version_base="1.3"),
    ):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        config = hydra.compose_config(
            "run", normalize(words), RunMode.MULTIRUN, with_log_configuration=False
        )
        from hydra._internal.callbacks import Callbacks

        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(config))
        yield Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task, config=config
        )


def _result(job: JobReturn) -> Any:
    return job.return_value
