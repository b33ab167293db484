"""The models of a configuration by the key of their values, and the meaning of every field."""

from typing import Any

from annotated_types import DocInfo, Unit

from testbed.core.config_model import field_hints, marks_of
from testbed.core.layers import Experts, Latent, States, Window
from testbed.core.specs import GpuSpec, ModelSpec, TierSpec
from testbed.core.spelling import dotted
from testbed.cost.software import SoftwareTimes
from testbed.run.config import (
    EngineConfig,
    RunConfig,
    ServerConfig,
    Slo,
    SoftwareConfig,
    WorkloadConfig,
)

SECTIONS = {  # by the key of its values; the first has the values of every run
    "": RunConfig,
    "workload": WorkloadConfig,
    "slo": Slo,
    "server": ServerConfig,
    "server.gpu": GpuSpec,
    "server.tiers.NAME": TierSpec,
    "model": ModelSpec,
    "model.window": Window,
    "model.latent": Latent,
    "model.experts": Experts,
    "model.states": States,
    "software": SoftwareConfig,
    "cost.software": SoftwareTimes,
    "engine": EngineConfig,
}


def meaning_of(hint: Any) -> str:
    """The text of an annotation's `doc`."""
    texts = (mark.documentation for mark in marks_of(hint) if isinstance(mark, DocInfo))
    return next(texts, "")


def meanings() -> dict[str, str]:
    """Unit and meaning of every field of the models by its key."""
    texts = dict[str, str]()
    for key, cls in SECTIONS.items():
        for name, hint in field_hints(cls).items():
            units = [str(mark.unit) for mark in marks_of(hint) if isinstance(mark, Unit)]
            texts[dotted(key, name)] = "; ".join([*units, meaning_of(hint)])
    return texts
