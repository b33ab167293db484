"""`testbed import-profile`: converts another project's layer times to a profile."""

from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.cost.sections import check_profile, dump
from testbed.experiments.commands.parser import Parser, above_zero, at_least_one
from testbed.experiments.importers.imported import Requested
from testbed.experiments.runs.whole_files import write_text


def parser() -> Parser:
    this = Parser("import-profile", "Converts another project's layer times to a profile.")
    this.add_argument("source", type=Path, metavar="FOLDER", help="a folder of LLMServingSim's (profiler/perf/.../tpN, "
                      "or of its older llm_profile), or AIConfigurator's systems/data/GPU (its tables need pip install "
                      "'kvcache-testbed[parquet]')")  # fmt: skip
    this.add_argument("--out", type=Path, required=True, metavar="FILE", help="profile JSON to write")
    this.add_argument("--model", metavar="NAME", help="a model's name, or its config.json; if not in the source")
    this.add_argument("--gpu", metavar="NAME", help="a GPU's name, or a data sheet as JSON; if not in the source")
    this.add_argument("--tensor-parallel", type=at_least_one, metavar="N", help="GPUs; if not in the source")
    this.add_argument("--kv-dtype-bytes", type=at_least_one, metavar="N", help="bytes of a cached value, 1 for fp8 "
                      "(default: the model's; AIConfigurator's tables)")  # fmt: skip
    this.add_argument("--weight-bits", type=above_zero, metavar="N", help="bits of a weight of the layers, 8 for fp8 "
                      "(default: the model's; AIConfigurator's tables)")  # fmt: skip
    links = this.add_argument_group("all-reduces of several GPUs, if not measured in the source (without these: the "
                                    "config.json of LLMServingSim's benchmark, in the folder or above it)")  # fmt: skip
    links.add_argument("--link", type=above_zero, metavar="GB/S", help="bandwidth each way between two GPUs")
    links.add_argument("--all-reduce-us", type=above_zero, metavar="US", help="an all-reduce's time beyond its bytes")
    links.add_argument("--nccl", type=Path, metavar="FOLDER", help="NCCL's times of a GPU with like links: "
                       "AIConfigurator's systems/data/GPU")  # fmt: skip
    return this


def main(argv: list[str]) -> None:
    """Write the profile; print missing sections of the source, and the extrapolation beyond its grid."""
    options = parser().parse_args(argv)
    from testbed.experiments.importers.all_reduces import add_all_reduces

    link = options.link and options.link * 1e9
    latency_s = options.all_reduce_us and options.all_reduce_us * 1e-6
    types = options.kv_dtype_bytes, options.weight_bits
    requested = Requested(options.model, options.gpu, options.tensor_parallel, link, latency_s, options.nccl, *types)
    found = reader_of(options.source).read(options.source, requested)
    add_all_reduces(found, options.source, requested)
    profile = found.profile()
    check_profile(profile, options.source)
    write_text(options.out, dump(profile))
    print(f"{found.source}: {found.model.name} on {found.num_gpus} x {found.device} -> {options.out}")
    for name, section in profile["sections"].items():
        print(f"  {name}: {len(section['points']):,} points")
    for note in dict.fromkeys(found.notes):
        print(f"  {note}")


def reader_of(source: Path) -> Any:
    """The reader for the format of the source."""
    from testbed.experiments.importers import aiconfigurator, llmservingsim, older_llmservingsim

    readers = (older_llmservingsim, llmservingsim, aiconfigurator)
    if not source.exists():
        raise InputError(f"{source}: no such folder or file (give the folder of their tables)")
    for reader in readers:
        if reader.is_here(source):
            return reader
    known = ", ".join(reader.NAME for reader in readers)
    raise InputError(f"{source}: not a profile of {known} (give the folder of their tables; a profile JSON of this "
                     "project needs no import: cost=profile cost.path=FILE)")  # fmt: skip
