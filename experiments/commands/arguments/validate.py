"""Arguments of `testbed validate`."""

from pathlib import Path

from experiments.commands.arguments import Parser


def parser() -> Parser:
    """The arguments; logs and KEY=VALUE are told apart by the sign."""
    this = Parser(
        prog="testbed validate",
        description="Replay logs of real servers, and print how far off the simulation is.",
    )
    this.add_argument("arguments", nargs="+", metavar="LOG | KEY=VALUE", help="logs: requests.jsonl of vLLM's "
                      "benchmark, or a CSV with arrival_s, first_token_s, finish_s; values: those of testbed run, such "
                      "as +system=vllm-v1 cost=profile cost.path=FILE server.num_blocks=N; with cost=profile, model, "
                      "GPU and number of GPUs are the profile's")  # fmt: skip
    this.add_argument("--workload", metavar="FILE", help="the prompts' token ids, line by line as in the log")
    this.add_argument("--csv", type=Path, metavar="OUT", help="a line for each log and metric")
    this.add_argument("--figure", type=Path, metavar="FILE", help="running requests over time; TTFT and TPOT")
    this.add_argument("--within", type=float, metavar="PERCENT", help="exit code 1 if any metric is further off")
    return this
