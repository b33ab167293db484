"""`testbed derive-profile`: carry a measured profile to another GPU's data sheet."""

import json
from pathlib import Path

from experiments.commands.arguments.derive_profile import parser
from experiments.runs.lab import CONF, composed
from experiments.runs.machine import check_device
from experiments.runs.make import make
from experiments.runs.whole_files import write_text
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec
from testbed.cost.derive import derive
from testbed.cost.profile import read_profile


def main(argv: list[str]) -> None:
    """Write the derived profile; its fingerprint says that it was derived, and from what."""
    options = parser().parse_args(argv)
    if options.attainable is not None and not 0 < options.attainable <= 1:
        raise InputError(f"--attainable {options.attainable:g}: it is a share, above 0 and at most 1")
    source, gpu = read_profile(options.source), data_sheet(options.source_gpu)
    check_device(source["fingerprint"], gpu, "--source-gpu")
    profile = derive(source, gpu, data_sheet(options.to), options.attainable)
    name = f"{options.to}-{profile['model']['name']}-tp{profile['num_gpus']}.json"
    out = options.out or Path(name)
    write_text(out, json.dumps(profile, indent=1) + "\n")
    print(f"derived profile: {out}")


def known() -> list[str]:
    """GPUs with a data sheet in the config tree."""
    return sorted(path.stem for path in (CONF / "gpu").glob("*.yaml"))


def data_sheet(name: str) -> GpuSpec:
    """A GPU of the config tree."""
    if name not in known():
        raise InputError(f"no GPU {name!r}; choose from {', '.join(known())}")
    spec: GpuSpec = make(composed(f"gpu/{name}", ()).gpu)
    return spec
