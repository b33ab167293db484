"""Profiles that ship, and the user's, each with the data sheet of the GPU that it is of."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.cost.profile import check_data_sheet
from testbed.cost.sections import PROFILES, SYSTEM, read_profile

NAME = "profile"  # key of a fingerprint: the name of a profile that ships


class Known(NamedTuple):
    """A profile, and the data sheet of the GPU that it was measured on."""

    profile: Mapping[str, Any]
    gpu: GpuSpec
    model: ModelSpec
    of_system: bool = False  # measured on the layers of one system, and so on no other model or GPU

    @property
    def layer(self) -> float:
        """Weights of the linear layers of a layer's shard."""
        return self.model.layer_params / int(self.profile["num_gpus"])

    @property
    def is_whole(self) -> bool:
        """True if it was measured on whole iterations of a system, whose sections are no kernels'
        alone.
        """
        return SYSTEM in self.profile["fingerprint"]

    def is_of(self, model: ModelSpec, num_gpus: int) -> bool:
        return self.model.is_shaped_like(model) and bool(self.profile["num_gpus"] == num_gpus)


def profiles_at_hand(path: str | Path | None, gpus: Iterable[GpuSpec]) -> Iterator[Known]:
    """The profiles of a file or of a folder, then those that ship; one whose GPU has no data sheet
    is left out.
    """
    user_files: list[str | Path] = []
    if path is not None:
        user_files = [*sorted(Path(path).glob("*.json"))] if Path(path).is_dir() else [path]
    data_sheets = {name: gpu for gpu in gpus for name in (gpu.name, gpu.device)}
    for profile in (*map(read_profile, user_files), *shipped()):
        gpu = data_sheets.get(profile["fingerprint"].get("device"))
        if gpu is None and profile.get("gpu"):
            gpu = GpuSpec(**profile["gpu"])
        if gpu is not None:
            yield Known(profile, gpu, ModelSpec(**profile["model"]))


def of_systems(iterations: str | None, system: str | None, gpu: GpuSpec) -> Iterator[Known]:
    """Shipped profiles of this GPU that no other model or GPU takes: whole iterations, then layers
    of a system. Raises InputError for a folder of iterations that does not ship.
    """
    if iterations is not None and not shipped(iterations):
        raise InputError(
            key="cost.iterations",
            value=iterations,
            problem=(
                "no such folder of profiles ships (null: take none; cost.path=FILE: a profile of "
                "yours)"
            ),
        )
    for folder in filter(None, (iterations, system)):
        for profile in shipped(folder):
            candidate = Known(profile, gpu, ModelSpec(**profile["model"]), of_system=True)
            if not is_elsewhere(candidate, gpu):
                yield candidate


def check_shipped_sheet(fingerprint: Mapping[str, Any], gpu: GpuSpec) -> None:
    """Times that were measured on a device of a shipped profile follow its data sheet alone, even
    if their own file has none. Raises InputError if the GPU's differs.
    """
    for profile in shipped():
        measured_there = fingerprint.get("device") == profile["fingerprint"]["device"]
        if measured_there and fingerprint.get("source") == "measured":
            check_data_sheet(GpuSpec(**profile["gpu"]), gpu)


@cache
def shipped(system: str = "") -> tuple[Mapping[str, Any], ...]:
    """The profiles that ship, read once: those of no system, or of this one. The fingerprint of
    whole iterations has the profile's name, which a summary quotes.
    """
    profiles = []
    for path in sorted((PROFILES / system).glob("*.json")):
        profile = json.loads(path.read_text(encoding="utf-8"))
        if SYSTEM in profile["fingerprint"]:
            profile["fingerprint"][NAME] = f"{system}/{path.stem}".lstrip("/")
        profiles.append(profile)
    return tuple(profiles)


def is_elsewhere(candidate: Known, gpu: GpuSpec) -> bool:
    """True if the profile was measured on another GPU."""
    return candidate.profile["fingerprint"].get("device") not in (gpu.name, gpu.device)
