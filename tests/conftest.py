"""Options of the whole suite."""

from hypothesis import HealthCheck, settings

# An example may take long on a machine that is busy, which says nothing of the code.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*.csv from this run")
