"""Arguments of `testbed validate-batches`, and the columns of its files."""

from pathlib import Path

from experiments.commands.arguments import Parser

SHAPE = ["num_layers", "num_heads", "head_size", "vocab_size"]
COLUMNS = ["model", "tensor_parallel", "batch_size", "input_len", "output_len", "latency_ms"]


def parser() -> Parser:
    """The command's arguments."""
    this = Parser(prog="testbed validate-batches", description="Latencies of static batches against measured kernels.")
    this.add_argument("latencies", type=Path, metavar="LATENCY.csv", help="a row for each batch: " + ", ".join(COLUMNS))
    this.add_argument("--kernels", type=Path, required=True, metavar="FOLDER",
                      help="AIConfigurator's folder of the GPU, such as systems/data/a100_sxm")  # fmt: skip
    this.add_argument("--models", type=Path, metavar="FILE", help="shapes: model, " + ", ".join(SHAPE)
                      + " (default: models.csv beside the latencies)")  # fmt: skip
    this.add_argument("--csv", type=Path, metavar="OUT", help="every row, predicted, those without latency too")
    this.add_argument("--fit", action="store_true", help="print what a layer takes beyond kernels and all-reduces, by "
                      "number of GPUs, and stop")  # fmt: skip
    return this
