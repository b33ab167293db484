"""The meaning of a config.json: the project's answer and the installed vLLM's, compared.

Each file of a folder is varied, and asked about on GPUs of three generations.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from testbed.experiments.real.lockstep.config_variations import variations
from testbed.experiments.real.lockstep.model_configs import FAMILIES
from testbed.experiments.real.lockstep.server_starts import Asked, compared

GPUS = ("a100-80gb", "h100-80gb", "b200")
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
OPTIONS = (  # of the command, for each unchanged file
    "--kv-cache-dtype fp8",
    "--dtype float16",
    "--quantization fp8",
    "--block-size 32",
    "--attention-backend FLASH_ATTN",
    "--max-model-len auto",
    "--max-model-len 3000",
    "--no-enable-prefix-caching",
    f"--speculative-config '{json.dumps(NGRAM)}'",
)


def config_files(folder: Path) -> list[Path]:
    """Every config.json below a folder; one without any is filled with the families that ship."""
    paths = sorted(folder.rglob("config.json"))
    if not paths:
        write_families(folder)
        paths = sorted(folder.rglob("config.json"))
    return paths


def write_families(folder: Path) -> None:
    """Write a folder with a config.json for each family that the project claims."""
    for name, config in json.loads(FAMILIES.read_text(encoding="utf-8")).items():
        path = folder / name / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def check_configs(folder: Path) -> Iterator[str]:
    """Compare every config.json below a folder and its variations; a line for each difference, and
    the counts last.
    """
    return compared(asked for path in config_files(folder) for asked in _asked(path))


def _asked(path: Path) -> Iterator[Asked]:
    """The questions to a file: its variations, and options beside the file as it is."""
    config, name = json.loads(path.read_text(encoding="utf-8")), path.parent.name
    for variation, varied in variations(config):
        yield from (Asked(f"{name} {variation}", varied, gpu) for gpu in GPUS)
    for words in OPTIONS:
        yield from (Asked(name, config, gpu, words) for gpu in GPUS)
