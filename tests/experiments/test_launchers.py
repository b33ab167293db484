"""Every launcher gives the table of a sweep in one process."""

import pytest
from refusals import check_words

SWEEP = ("run", "-m", "policy=contiguous_max,paged", "arrivals.rate=0.5,1", "arrivals.duration_s=5")
PACKAGES = {"submitit_local": "submitit", "ray": "ray", "dask": "distributed"}


@pytest.mark.parametrize("launcher", ["joblib", *PACKAGES])
def test_a_launcher_gives_the_table_of_one_process(testbed, tmp_path, launcher):
    if package := PACKAGES.get(launcher):
        pytest.importorskip(package)
    for name in ("basic", launcher):
        words = (f"hydra/launcher={name}", f"hydra.sweep.dir={name}", "outputs=summary")
        code, _, error = testbed(*SWEEP, *words)
        assert code == 0, error  # Ray has lines of its own on standard error
    tables = [(tmp_path / name / "sweep.csv").read_text() for name in ("basic", launcher)]
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["hydra/launcher=joblob"], ("hydra/launcher=joblob", "did you mean joblib")),
        (["hydra/launcher=joblib", "hydra.launcher.jobs=2"], ("hydra.launcher.jobs", "n_jobs")),
        (["hydra.launcher.n_jobs=2"], ("hydra.launcher.n_jobs",)),
        (["hydra.job.name=x"], ("hydra.job.name",)),
    ],
    ids=" ".join,
)
def test_unknown_launchers_and_settings_are_refused(testbed, tmp_path, words, problem):
    check_words(problem, testbed.refused(*SWEEP, *words))
    assert not (tmp_path / "runs").exists()
