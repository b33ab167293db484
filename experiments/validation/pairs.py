"""The simulated side of the runs that `python -m kernels.engine.pairs` made on a GPU, and the tables of both.

python -m experiments.validation.pairs [--runs FOLDER] [--profiles FOLDER] [--out FOLDER] [--figure PNG]

It needs no GPU: every simulated run has the config of the real one beside it, so the same requests, policy and
scheduler. Prices are those of measured profiles, the engine's own and those that ship, and the software time that was
measured before the pairs began; nothing is fitted to a pair. The tables replace the last section of
kernels/results/h200-engine.md; its table of decode iterations is made anew too, from the rows beside the runs.
"""

import argparse
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from experiments.compare.finished_run import FinishedRun, read_run
from experiments.compare.terms import terms
from experiments.paper.style import save
from experiments.runs.build import build
from experiments.runs.point import run, write_everything
from experiments.runs.whole_files import SUMMARY, write_json, write_text
from experiments.validation.decode_lines import decode_lines, renewed
from experiments.validation.pair_figure import draw
from experiments.validation.pair_table import Pair, Side, section
from kernels.engine.pairs.plan import PAIRS
from kernels.engine.pairs.software import read_software
from testbed.core.errors import InputError

RESULTS = Path("kernels/results")
HEADING = "## The simulation beside it"


def main(arguments: list[str] | None = None) -> None:
    """Simulate every pair there is, write the tables, print them."""
    parser = argparse.ArgumentParser("python -m experiments.validation.pairs", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, default=RESULTS / "engine" / "pairs")
    parser.add_argument("--profiles", type=Path, default=RESULTS / "engine" / "profiles", help="the engine's own")
    parser.add_argument("--out", type=Path, help="folder for the runs simulated with them; default: none is kept")
    parser.add_argument("--table", type=Path, default=RESULTS / "h200-engine.md")
    parser.add_argument("--figure", type=Path, help="Figures 2, 12 and 13 on hardware: .png, .pdf or .svg")
    options = parser.parse_args(arguments)
    known = [pair for pair in PAIRS if (options.runs / pair.name / SUMMARY).exists()]
    if not known:
        raise InputError(f"{options.runs} holds no run of a pair: run python -m kernels.engine.pairs on a GPU first")
    pairs = [simulated(options.runs / pair.name, pair.about, options.profiles, options.out) for pair in known]
    text = section(pairs)
    print(text)
    replace_section(options.table, text, decode_lines(options.runs.parent))
    if options.figure:
        save(draw({pair.name: pair for pair in pairs}), options.figure)


def simulated(real: Path, about: str, profiles: Path, out: Path | None) -> Pair:
    """A run of the engine and its simulated counterparts, by the engine's profile and by the one that ships."""
    measured = read_run(real.name, real)  # of any version: rows are kept longer than code
    ours, shipped = (side(measured, priced(real, folder), keep) for folder, keep in ((profiles, out), (None, None)))
    return Pair(real.name, about, measured, ours, shipped)


def side(measured: FinishedRun, config: dict[str, Any], out: Path | None) -> Side:
    """Simulate a config; the run is written below `out`."""
    node = OmegaConf.create(config)
    setup = build(node)
    result = run(setup)
    folder = (out or Path()) / measured.name
    if out is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.yaml", OmegaConf.to_yaml(node))
        write_everything(folder, setup, result)
        write_json(folder / "timing.json", {"wall_s": result.wall_s})
        write_json(folder / SUMMARY, result.summary)
    beside = FinishedRun(measured.name, folder, config, result.summary, None, None)
    return Side(result.summary, terms(beside, measured))


def priced(real: Path, profiles: Path | None) -> dict[str, Any]:
    """The config of a real run, with the prices that were measured beside it; None: profiles that ship."""
    values: dict[str, Any] = yaml.safe_load((real / "config.yaml").read_text(encoding="utf-8"))
    values.pop("engine")
    told = values["cost"].get("choices") or values["cost"]["efficiencies"]
    software = real.parent / f"software-{values['model']['name']}.csv"
    told["overhead_s"], told["overhead_per_request_s"] = read_software(software)
    if "choices" in values["cost"]:
        told["swap_waits"] = "all in"  # what the engine does: see CudaMoves
    if profiles is not None and "path" in values["cost"]:
        values["cost"]["path"] = str(profiles / f"{values['cost']['path']}.json")
    return values


def replace_section(path: Path, text: str, decodes: list[str]) -> None:
    """The section from HEADING on is `text` now, and the table of decodes before it `decodes`."""
    before = path.read_text(encoding="utf-8").partition(HEADING)[0].rstrip() if path.exists() else ""
    before = renewed(before, decodes)
    write_text(path, f"{before}\n\n{HEADING}\n\n{text}".lstrip())


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"experiments.validation.pairs: {error}") from None
