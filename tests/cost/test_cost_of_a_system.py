"""Shipped profiles that are of one system's layers alone."""

from testbed.cost.known_profiles import of_systems
from testbed.experiments.runs.compose import configured


def test_profiles_of_the_engine_are_of_that_system_alone():
    gpu = configured(("server=h200",)).server.gpu
    profiles = list(of_systems(None, "engine", gpu))
    assert profiles
    assert all(profile.of_system for profile in profiles)
    assert not list(of_systems(None, None, gpu))
