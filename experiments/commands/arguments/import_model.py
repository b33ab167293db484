"""Arguments of `testbed import-model`."""

from pathlib import Path

from experiments.commands.arguments import Parser


def parser() -> Parser:
    """The command's arguments."""
    this = Parser(
        prog="testbed import-model",
        description="The shape that a Hugging Face config.json describes, as a model of ours.",
    )
    this.add_argument("config", type=Path, metavar="CONFIG", help="config.json of OPT, LLaMA, Qwen2, Qwen3 or Mistral")
    this.add_argument("--name", help="what to call it (default: what the file says, else its folder)")
    this.add_argument("--out", type=Path, metavar="FILE", help="default: model/NAME.yaml")
    return this
