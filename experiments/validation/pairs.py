"""The simulated side of the runs that `python -m kernels.engine.pairs` made on a GPU, and the table of both.

python -m experiments.validation.pairs [--runs kernels/results/engine/pairs] [--profiles FOLDER] [--out FOLDER]

It needs no GPU: every simulated run has the config of the real one beside it, so the same requests, policy and
scheduler. Prices are those of a measured profile, and the software time that was measured before the pairs began;
nothing is fitted to a pair. The table replaces the last section of kernels/results/h200-engine.md.
"""

import argparse
from pathlib import Path

import pandas as pd
import yaml
from omegaconf import DictConfig, OmegaConf

from experiments.runs.build import build
from experiments.runs.point import complete, run, write_everything
from experiments.runs.whole_files import SUMMARY, write_json, write_text
from experiments.validation.pair_table import Pair, section
from kernels.engine.pairs.plan import PAIRS
from kernels.engine.pairs.software import read_software
from testbed.core.errors import InputError
from testbed.cost.model import CostModel
from testbed.cost.work_table import read_work

RESULTS = Path("kernels/results")
HEADING = "## The simulation beside it"


def main(arguments: list[str] | None = None) -> None:
    """Simulate every pair there is, write the table, print it."""
    parser = argparse.ArgumentParser("python -m experiments.validation.pairs", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, default=RESULTS / "engine" / "pairs")
    parser.add_argument("--profiles", type=Path, help="folder of measured profiles; default: those that ship")
    parser.add_argument("--out", type=Path, help="folder for the simulated runs; default: none is kept")
    parser.add_argument("--table", type=Path, default=RESULTS / "h200-engine.md")
    options = parser.parse_args(arguments)
    names = [pair.name for pair in PAIRS if (options.runs / pair.name / SUMMARY).exists()]
    if not names:
        raise InputError(f"{options.runs} holds no run of a pair: run python -m kernels.engine.pairs on a GPU first")
    about = {pair.name: pair.about for pair in PAIRS}
    pairs = [simulated(options.runs / name, about[name], options.profiles, options.out) for name in names]
    prices = "the profiles that ship" if options.profiles is None else f"the profiles in {options.profiles.as_posix()}"
    text = section(pairs, prices)
    print(text)
    replace_section(options.table, text)


def simulated(real: Path, about: str, profiles: Path | None, out: Path | None) -> Pair:
    """A run of the engine and its simulated counterpart."""
    config = priced(real, profiles)
    setup = build(config)
    result = run(setup)
    if out is not None:
        folder = out / real.name
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.yaml", OmegaConf.to_yaml(config))
        write_everything(folder, setup, result)
        write_json(folder / "timing.json", {"wall_s": result.wall_s})
        write_json(folder / SUMMARY, result.summary)
    measured = complete(real)
    if measured is None:
        raise InputError(f"{real}: the run is not complete")
    return Pair(real.name, about, measured, result.summary, iterations(real, setup.cost))


def priced(real: Path, profiles: Path | None) -> DictConfig:
    """The config of a real run, with the prices that were measured beside it."""
    values = yaml.safe_load((real / "config.yaml").read_text(encoding="utf-8"))
    values.pop("engine")
    told = values["cost"].get("choices") or values["cost"]["efficiencies"]
    software = real.parent / f"software-{values['model']['name']}.csv"
    told["overhead_s"], told["overhead_per_request_s"] = read_software(software)
    if profiles is not None:
        values["cost"]["path"] = str(profiles / f"{values['cost']['path']}.json")
    return OmegaConf.create(values)


def iterations(real: Path, cost: CostModel) -> pd.DataFrame:
    """Every iteration of a real run: seconds measured, seconds priced, and whether it computed prompts."""
    table = pd.read_csv(real / "iterations.csv.gz")
    works = [read_work(row) for row in table.to_dict("records")]
    priced_s = [cost.iteration(work) / 1e12 for work in works]
    return table[["duration_s", "gpu_s", "host_s"]].assign(priced_s=priced_s, prompts=[bool(w.prefill) for w in works])


def replace_section(path: Path, text: str) -> None:
    """The section from HEADING on is `text` now."""
    before = path.read_text(encoding="utf-8").partition(HEADING)[0].rstrip() if path.exists() else ""
    write_text(path, f"{before}\n\n{HEADING}\n\n{text}".lstrip())


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"experiments.validation.pairs: {error}") from None
