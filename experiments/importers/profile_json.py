"""Our own JSON: checked, and written again; the model's name, its longest sequence and the data sheet may change."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.cost.profile_check import check_profile
from testbed.cost.sections import FORMAT
from testbed.experiments.importers.imported import Imported, Requested
from testbed.experiments.importers.known_shapes import data_sheet, model_asked, model_named
from testbed.traces.files import read_json

NAME = "our own JSON"


class ProfileJson(Imported):
    """A profile that is in our format already."""

    whole: dict[str, Any]

    def profile(self) -> Mapping[str, Any]:
        """What was read, with what was asked for."""
        built = super().profile()
        return {**self.whole, "model": built["model"], "gpu": built["gpu"]}


def is_here(source: Path) -> bool:
    """Whether it is a JSON file."""
    return source.is_file() and source.suffix == ".json"


def read(source: Path, requested: Requested) -> ProfileJson:
    """The profile of the file; every section and point is looked at."""
    whole = read_json(str(source))
    kind = whole.get("format") if isinstance(whole, dict) else type(whole).__name__
    if kind != FORMAT:
        raise InputError(f"{source}: profile format {kind}, this version reads {FORMAT}")
    if "model" not in whole and requested.model:
        whole["model"] = asdict(model_named(requested.model))
    check_profile(whole, source)
    num_gpus = whole["num_gpus"]
    if requested.tensor_parallel not in (None, num_gpus):
        raise InputError(f"{source}: is of {num_gpus} GPU(s), not of {requested.tensor_parallel}; leave it out")
    model = model_asked(requested.model, ModelSpec(**whole["model"]), source)
    device = str(whole["fingerprint"].get("device", "unknown"))
    gpu = (
        GpuSpec(**whole["gpu"]) if whole.get("gpu") and not requested.gpu else data_sheet(requested.gpu, device, source)
    )
    found = ProfileJson(NAME, device, model, num_gpus, gpu, whole["sections"])
    found.whole = whole
    return found
