"""`testbed import model`, `profile` and `lengths`: files of others as ours."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import (
    AboveZero,
    AtLeastOne,
    GpuName,
    ModelName,
    ProfileOut,
)
from testbed.experiments.runs.whole_files import write_text

if TYPE_CHECKING:
    from testbed.experiments.real.importers.imported import Imported

app = App(name="import", help="Convert models, profiles and lengths of others.")

ModelConfig = Annotated[Path, Parameter(name="CONFIG", help="config.json of a Hugging Face model")]
NewName = Annotated[
    str | None,
    Parameter(help="the model's name (default: the file's name for it, else its folder)"),
]
ModelOut = Annotated[
    Path | None, Parameter(metavar="FILE", help="file to write (default: model/NAME.yaml)")
]
Source = Annotated[
    Path,
    Parameter(
        name="FOLDER",
        help="a folder of LLMServingSim's (profiler/perf/.../tpN), or AIConfigurator's "
        "systems/data/GPU (its tables need pip install 'kvcache-testbed[parquet]')",
    ),
]
NumGpus = Annotated[AtLeastOne | None, Parameter(help="GPUs (default: the source's)")]
KvDtypeBytes = Annotated[
    AtLeastOne | None,
    Parameter(
        help="bytes of a cached value, 1 for fp8 (default: the model's; AIConfigurator's tables)"
    ),
]
WeightBits = Annotated[
    AboveZero | None,
    Parameter(
        metavar="N",
        help="bits of a weight of the layers, 8 for fp8 (default: the model's; "
        "AIConfigurator's tables)",
    ),
]
Pickle = Annotated[
    str,
    Parameter(name="PICKLE", help="a pickled list of (prompt, output) lengths or token ids"),
]
LengthsOut = Annotated[
    str, Parameter(name="CSV", help="the file to write, gzipped if its name ends in .gz")
]


@app.command
def model(config: ModelConfig, /, *, name: NewName = None, out: ModelOut = None) -> None:
    """Convert a Hugging Face config.json to a model of a config.

    A model_type that is not known is refused with those that are.
    """
    from testbed.core.hf_config import model_of, uncounted_parts, values_of_class
    from testbed.core.hf_served import check_served

    check_served(config)
    shape = model_of(config, name)
    if name is None and out is None:
        _check_file_name(shape.name, config)
    out = out or Path("model") / f"{shape.name}.yaml"
    out.parent.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in asdict(shape).items() if value is not None}
    uncounted = uncounted_parts(config, shape)
    is_yaml = out.suffix == ".yaml"
    write_text(out, (_as_yaml(values) if is_yaml else json.dumps(values, indent=1)) + "\n")
    print(
        f"{shape.name}: {shape.num_params / 1e9:.2f} billion weights, "
        f"{shape.kv_bytes_per_token / 1024:g} KiB of KV cache a token, "
        f"up to {shape.max_len:,} tokens -> {out}"
    )
    if of_class := values_of_class(config):
        listed = ", ".join(f"{key}={value}" for key, value in sorted(of_class.items()))
        print(f"not in the file, but in its class of Transformers: {listed}")
    if uncounted:
        print(f"not counted: {uncounted}")
    if is_yaml and out.parent.name == "model":
        folder = out.parent.parent.absolute()
        print(f"testbed run --config-dir {folder} model={out.stem} server=...")


def _check_file_name(name: str, config: Path) -> None:
    """Raise InputError for a model's name that leads into another folder."""
    if name in (".", "..") or Path(name).name != name:
        raise InputError(
            key=config,
            problem=f"its model is called {name!r}, which is no name of a file",
            remedy="give --name or --out",
        )


def _as_yaml(values: dict[str, object]) -> str:
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["_target_: testbed.core.specs.ModelSpec", *lines])


@app.command
def profile(
    source: Source,
    /,
    *,
    out: ProfileOut,
    model: ModelName = None,
    gpu: GpuName = None,
    tensor_parallel: NumGpus = None,
    kv_dtype_bytes: KvDtypeBytes = None,
    weight_bits: WeightBits = None,
) -> None:
    """Convert layer times of LLMServingSim or AIConfigurator to a cost profile.

    Prints missing sections of the source, and the extrapolation beyond its grid.
    """
    from testbed.cost.sections import check_profile, dump
    from testbed.experiments.real.importers.imported import Requested
    from testbed.experiments.real.importers.readers import reader_of

    requested = Requested(model, gpu, tensor_parallel, kv_dtype_bytes, weight_bits)
    imported = reader_of(source).read(source, requested)
    imported.note_missing_all_reduces()
    contents = imported.profile()
    check_profile(contents, source)
    write_text(out, dump(contents))
    _print_sections(imported, contents["sections"], out)


def _print_sections(imported: "Imported", sections: dict[str, Any], out: Path) -> None:
    """Print the source, the points of each section and the reader's notes."""
    shard = f"{imported.model.name} on {imported.num_gpus} x {imported.device}"
    print(f"{imported.source}: {shard} -> {out}")
    for name, section in sections.items():
        print(f"  {name}: {len(section['points']):,} points")
    for note in dict.fromkeys(imported.notes):
        print(f"  {note}")


@app.command
def lengths(path: Pickle, out: LengthsOut, /) -> None:
    """Convert the lengths of the paper's artifact to a CSV.

    Reports whether the rows are known; reading the pickle runs no code.
    """
    from testbed.traces.csv_lengths import PUBLISHED, read_pairs, rows_sha256, write_lengths

    rows = read_pairs(path)
    write_lengths(out, rows)
    means = f"{rows.prompt_len.mean():.2f} and {rows.output_len.mean():.2f}"
    digest = rows_sha256(rows)
    print(f"{len(rows):,} requests, means of {means} tokens: {out}")
    print(
        f"SHA-256 of the rows {digest}: {PUBLISHED.get(digest, 'not rows that this project knows')}"
    )
