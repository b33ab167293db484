"""`testbed validate-costs`: leave each profile out in turn and predict it from the others, by every way."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.experiments.commands.parser import Parser, at_least_one

if TYPE_CHECKING:
    import pandas as pd

HELD_BACK = ("kind", "section", "rows", "outside", "median", "p90")
HEAD = ("way", "predicted from", "GPUs", "profiles", "decodes", "prefills", "TTFT", "TPOT", "latency")


def main(argv: list[str]) -> None:
    """Print the errors by way, and write every row."""
    this = Parser("validate-costs", "Leave each profile out in turn and predict it from the others, by every way: the "
                  "errors that a run's first line quotes.")  # fmt: skip
    this.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="others' measurements, as import-profile "
                      "reads them: AIConfigurator's systems/data/GPU, LLMServingSim's tpN")  # fmt: skip
    this.add_argument("--held-back", type=at_least_one, metavar="N", help="in place of that: hold every N-th row of "
                      "AIConfigurator's tables of attention, experts and states back, and predict it from the others, "
                      "in the shapes of the models that ship; 5 is every fifth")  # fmt: skip
    this.add_argument("--out", type=Path, metavar="FILE", help="write a row for each profile and way")
    options = this.parse_args(argv)
    if options.held_back:
        return _held_back(options.folders, options.held_back)
    import pandas as pd

    from testbed.cost.nearest import profiles_at_hand
    from testbed.experiments.commands.console import plain_table, wide_console
    from testbed.experiments.importers.known_shapes import gpu_named
    from testbed.experiments.runs.choice_names import ANY_SERVER
    from testbed.experiments.runs.whole_files import write_text
    from testbed.experiments.validation.left_out import imported, tested

    shipped = list(profiles_at_hand(None, [gpu_named(ANY_SERVER)]))
    shards = [(one.loads.model.name, one.loads.num_gpus) for one in shipped]
    known = shipped + [one for folder in options.folders for one in imported(folder, shards)]
    table = pd.DataFrame(tested(known, known)).fillna("")
    if options.out:
        write_text(options.out, table.to_csv(index=False))
    console = wide_console()
    console.print("each profile left out and predicted from the others: median error in percent (largest)")
    console.print(plain_table(HEAD, by_way(table)))


def _held_back(folders: list[Path], every: int) -> None:
    import pandas as pd

    from testbed.core.errors import InputError
    from testbed.experiments.commands.console import plain_table, wide_console
    from testbed.experiments.validation.held_back import held_back

    if len(folders) != 1 or every < 2:
        raise InputError("--held-back: takes one folder of AIConfigurator's, and at least 2; 5 is every fifth row")
    cells = []
    for names, rows in pd.DataFrame(held_back(folders[0], every)).groupby(["kind", "section"]):
        off = 100 * rows["error"].dropna().abs()
        percents = (f"{off.median():.1f}%", f"{off.quantile(0.9):.1f}%")
        cells.append([*map(str, names), f"{len(off):,}", f"{len(rows) - len(off):,}", *percents])
    wide_console().print(plain_table(HELD_BACK, cells))


def by_way(table: "pd.DataFrame") -> Iterator[list[str]]:
    """A line for each way, for the makers of the profiles that it starts from, and for one GPU and several."""
    makers = table["source_by"].replace({"measured": "ours", "": "a data sheet"})
    several = table["num_gpus"].gt(1).map({False: "one", True: "several"})
    for names, rows in table.groupby([table["way"], makers, several]):
        errors = rows[[name for name in rows if name.endswith("_percent") and "p90" not in name]].abs()
        cells = [f"{errors[name].median():.1f} ({errors[name].max():.1f})" for name in errors]
        yield [*map(str, names), f"{len(rows)}", *cells]
