"""Shipped profiles that are of one system's layers alone."""

from testbed.cost.known_profiles import of_systems
from testbed.cost.model import Work
from testbed.experiments.runs.compose import configured
from testbed.run.machine import cost_of

DECODES = Work(8, 8 * 512, 512, num_requests=8)


def test_profiles_of_the_engine_are_of_that_system_alone():
    gpu = configured(("server=h200",)).server.gpu
    profiles = list(of_systems(None, "engine", gpu))
    assert profiles
    assert all(profile.of_system for profile in profiles)
    assert not list(of_systems(None, None, gpu))


def test_default_costs_are_of_the_layers_of_the_run_s_system():
    """And of the kernels alone in a run of a system whose layers were not measured there."""

    def cost(*words):
        taken = cost_of(configured(("server=h200", "~server.kv_memory_gib", *words)))
        return taken.fingerprint, taken.iteration(DECODES)

    of_engine = cost("software=engine")
    assert of_engine == cost("software=engine", "cost.path=engine/h200-opt-13b-tp1")
    assert of_engine != cost("software=engine", "cost.path=h200-opt-13b-tp1")
    of_vllm = cost("software=vllm-0.19")
    assert of_vllm == cost("software=vllm-0.19", "cost.path=h200-opt-13b-tp1")
