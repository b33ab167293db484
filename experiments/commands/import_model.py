"""`testbed import-model`: the shape that a Hugging Face config.json describes, as a model of ours."""

import json
from dataclasses import asdict
from pathlib import Path

from experiments.commands.arguments.import_model import parser
from experiments.importers.hf_config import model_of
from experiments.runs.whole_files import write_text
from testbed.core.specs import ModelSpec


def main(argv: list[str]) -> None:
    """Write the model file and say how large it is."""
    options = parser().parse_args(argv)
    model = model_of(options.config, options.name)
    out = options.out or Path("model") / f"{model.name}.yaml"
    if not options.out:
        out.parent.mkdir(exist_ok=True)
    write_text(out, written(model, out.suffix))
    print(f"{model.name}: {model.num_params / 1e9:.2f} billion weights, {model.kv_bytes_per_token / 1024:g} KiB of KV "
          f"cache a token, up to {model.max_len:,} tokens -> {out}")  # fmt: skip
    if out.suffix == ".yaml" and out.parent.name == "model":
        print(f"testbed run --config-dir {out.parent.parent.absolute()} model={out.stem} server=...")


def written(model: ModelSpec, suffix: str) -> str:
    """A model file: JSON, or YAML for the config group `model`."""
    values = asdict(model)
    if suffix != ".yaml":
        return json.dumps(values, indent=1) + "\n"
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["_target_: testbed.core.specs.ModelSpec", *lines, ""])
