"""`testbed import-lengths`, `import-model` and `import-profile`: what others measured or published, in our formats."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.hf_config import KINDS, model_of
from testbed.cost.profile_check import check_profile
from testbed.cost.sections import dump
from testbed.experiments.commands.terminal import Parser, above_zero, at_least_one
from testbed.experiments.runs.whole_files import write_text


def import_lengths(argv: list[str]) -> None:
    """Write the CSV, and report whether its rows are known; reading the pickle runs no code."""
    this = Parser("import-lengths", "Converts a pickled data set of the paper's artifact to a CSV of lengths.")
    this.add_argument("path", metavar="FILE.pkl", help="a pickled list of (prompt, output) lengths or token ids")
    this.add_argument("out", metavar="OUT.csv", help="the CSV to write, gzipped where its name ends in .gz")
    options = this.parse_args(argv)
    from testbed.traces.artifact_lengths import PUBLISHED, read_pairs, rows_sha256
    from testbed.traces.csv_lengths import write_lengths

    rows = read_pairs(options.path)
    write_lengths(options.out, rows)
    means = f"{rows.prompt_len.mean():.2f} and {rows.output_len.mean():.2f}"
    digest = rows_sha256(rows)
    print(f"{len(rows):,} requests, means of {means} tokens: {options.out}")
    print(f"SHA-256 of the rows {digest}: {PUBLISHED.get(digest, 'not rows that this project knows')}")


def import_model(argv: list[str]) -> None:
    """Write the model file and print its size."""
    this = Parser("import-model", "Converts the shape in a Hugging Face config.json to a model of the testbed.")
    this.add_argument("config", type=Path, metavar="CONFIG", help=f"config.json of {', '.join(KINDS)}")
    this.add_argument("--name", help="the model's name (default: the file's name for it, else its folder)")
    this.add_argument("--out", type=Path, metavar="FILE", help="default: model/NAME.yaml")
    options = this.parse_args(argv)
    model = model_of(options.config, options.name)
    out = options.out or Path("model") / f"{model.name}.yaml"
    out.parent.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in asdict(model).items() if value is not None}
    lines = ["_target_: testbed.core.specs.ModelSpec", *(f"{key}: {json.dumps(one)}" for key, one in values.items())]
    write_text(out, ("\n".join(lines) if out.suffix == ".yaml" else json.dumps(values, indent=1)) + "\n")
    print(f"{model.name}: {model.num_params / 1e9:.2f} billion weights, {model.kv_bytes_per_token / 1024:g} KiB of KV "
          f"cache a token, up to {model.max_len:,} tokens -> {out}")  # fmt: skip
    if out.suffix == ".yaml" and out.parent.name == "model":
        print(f"testbed run --config-dir {out.parent.parent.absolute()} model={out.stem} server=...")


def import_profile(argv: list[str]) -> None:
    """Write the profile; print missing sections of the source, and the extrapolation beyond its grid."""
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
    options = this.parse_args(argv)
    from testbed.experiments.importers.imported import Requested, add_all_reduces

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
