"""The engine from the command line.

python -m kernels.engine CONFIG [--out FOLDER]      serve a workload; the folder holds what a simulated run's does
python -m kernels.engine generate --model FOLDER "a prompt" "another"
"""

import sys
from pathlib import Path

from kernels.engine.config_file import read_config
from kernels.launch.compile import KernelsUnavailable
from kernels.measure.arguments import Arguments
from testbed.core.errors import InputError

BAD_INPUT = 2


def main(arguments: list[str]) -> None:
    """Run one of the two commands; bad input ends in one line."""
    try:
        _generate(arguments[1:]) if arguments[:1] == ["generate"] else _serve(arguments)
    except (InputError, KernelsUnavailable, OSError) as error:
        _end(str(error))
    except ModuleNotFoundError as error:
        _end(f"the engine needs the package {error.name}: install torch and CuPy")


def _end(message: str) -> None:
    print(f"kernels.engine: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(BAD_INPUT)


def _serve(arguments: list[str]) -> None:
    parser = Arguments("python -m kernels.engine", description="Serve a workload on a GPU.")
    parser.add_argument("config", type=Path, help="a run's config.yaml, or the same as .json")
    parser.add_argument("--out", type=Path, help="the run's folder; default: the config's engine.out")
    options = parser.parse_args(arguments)
    config = read_config(options.config)
    from kernels.engine.config import engine_options, make_run

    folder = options.out or Path(engine_options(config)["out"])
    summary = make_run(config).carry_out(folder)
    counts = ", ".join(f"{value} {name}" for name, value in summary["requests"].items())
    print(f"requests: {counts}; {summary['iterations']} iterations; run folder: {folder}")


def _generate(arguments: list[str]) -> None:
    parser = Arguments("python -m kernels.engine generate", description="Text in, text out.")
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder with tokenizer.json")
    parser.add_argument("--num-tokens", type=int, default=64)
    parser.add_argument("--num-beams", type=int, default=1)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("prompts", nargs="+")
    options = parser.parse_args(arguments)
    from kernels.engine.generate import generate

    texts = generate(options.model, options.prompts, options.num_tokens, options.num_beams, options.device)
    for prompt, text in zip(options.prompts, texts, strict=True):
        print(f"{prompt}{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
