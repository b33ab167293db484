"""`testbed import-model`: converts the shape in a Hugging Face config.json to a model of the testbed."""

import json
from dataclasses import asdict
from pathlib import Path

from testbed.core.hf_config import KINDS, model_of
from testbed.core.specs import ModelSpec
from testbed.experiments.commands.parser import Parser
from testbed.experiments.runs.whole_files import write_text


def main(argv: list[str]) -> None:
    """Write the model file and print its size."""
    this = Parser("import-model", "Converts the shape in a Hugging Face config.json to a model of the testbed.")
    this.add_argument("config", type=Path, metavar="CONFIG", help=f"config.json of {', '.join(KINDS)}")
    this.add_argument("--name", help="the model's name (default: the file's name for it, else its folder)")
    this.add_argument("--out", type=Path, metavar="FILE", help="default: model/NAME.yaml")
    options = this.parse_args(argv)

    model = model_of(options.config, options.name)
    out = options.out or Path("model") / f"{model.name}.yaml"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, written(model, out.suffix))
    print(f"{model.name}: {model.num_params / 1e9:.2f} billion weights, {model.kv_bytes_per_token / 1024:g} KiB of KV "
          f"cache a token, up to {model.max_len:,} tokens -> {out}")  # fmt: skip
    if out.suffix == ".yaml" and out.parent.name == "model":
        print(f"testbed run --config-dir {out.parent.parent.absolute()} model={out.stem} server=...")


def written(model: ModelSpec, suffix: str) -> str:
    """A model file: JSON, or YAML for the config group `model`."""
    values = {key: value for key, value in asdict(model).items() if value is not None}
    if suffix != ".yaml":
        return json.dumps(values, indent=1) + "\n"
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["_target_: testbed.core.specs.ModelSpec", *lines, ""])
