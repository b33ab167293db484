"""`testbed derive-profile`: scales a measured profile to another GPU's data sheet."""

import json
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec
from testbed.experiments.commands.parser import Parser
from testbed.experiments.runs.choice_names import files_of
from testbed.experiments.runs.whole_files import write_text


def parser() -> Parser:
    this = Parser("derive-profile", "Scales a measured profile to another GPU's data sheet.")
    this.add_argument("--from", dest="source", required=True, metavar="PROFILE", help="a JSON file, or a shipped name")
    this.add_argument("--to", required=True, metavar="GPU", help=", ".join(sorted(files_of("gpu"))))
    this.add_argument("--source-gpu", default="h200", metavar="GPU", help="the measured GPU (default: h200)")
    this.add_argument("--out", type=Path, metavar="FILE", help="default: the profile's name with the new GPU in front")
    this.add_argument("--attainable", type=float, metavar="SHARE", help="attainable share of the new GPU's memory "
                      "bandwidth (A100: 0.86); default: the share that the measured GPU reached")  # fmt: skip
    return this


def main(argv: list[str]) -> None:
    """Write the derived profile; its fingerprint names its source."""
    options = parser().parse_args(argv)
    from testbed.cost.derive import derive
    from testbed.cost.profile import read_profile
    from testbed.machine import check_device

    if options.attainable is not None and not 0 < options.attainable <= 1:
        raise InputError(f"--attainable {options.attainable:g}: it is a share, above 0 and at most 1")
    source, gpu = read_profile(options.source), data_sheet(options.source_gpu)
    check_device(source["fingerprint"], gpu, "--source-gpu")
    profile = derive(source, gpu, data_sheet(options.to), options.attainable)
    out = options.out or Path(f"{options.to}-{profile['model']['name']}-tp{profile['num_gpus']}.json")
    write_text(out, json.dumps(profile, indent=1) + "\n")
    print(f"derived profile: {out}")


def data_sheet(name: str) -> GpuSpec:
    """A GPU of the config tree."""
    from testbed.experiments.importers.known_shapes import gpu_named

    known = sorted(files_of("gpu"))
    if name not in known:
        raise InputError(f"no GPU {name!r}; choose from {', '.join(known)}")
    return gpu_named(name)
