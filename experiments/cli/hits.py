"""`testbed hits`: which share of a trace a prefix cache finds, by its size and eviction order."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import AsJson, ConfigFolders, Override, Picture
from testbed.experiments.cli.served_command import NO_COMMAND, ServedCommand

if TYPE_CHECKING:
    from testbed.experiments.look.hits.hit_curves import HitCurves

Sizes = Annotated[
    str, Parameter(metavar="N,N,...", help="cache sizes in blocks (default: 12 and the pools)")
]
Orders = Annotated[
    str,
    Parameter(
        metavar="NAME,NAME,...",
        help="eviction orders of `testbed list eviction`, or MODULE:CLASS; lru and belady need one "
        "pass, others a replay for each size",
    ),
]
Csv = Annotated[Path | None, Parameter(metavar="FILE", help="write a row for each size")]
Html = Annotated[Path | None, Parameter(metavar="FILE", help="write one page")]
Drawing = Annotated[Picture, Parameter(help="draw the curves (.png, .pdf or .svg)")]


def hits(
    *overrides: Annotated[Override, Parameter(required=True)],
    served: ServedCommand = NO_COMMAND,
    sizes: Sizes = "",
    orders: Orders = "lru,belady",
    csv: Csv = None,
    html: Html = None,
    figure: Drawing | None = None,
    config_dir: ConfigFolders | None = None,
    json: AsJson = False,
) -> None:
    """Print which share of a trace's prompt tokens a prefix cache finds, by cache size.

    Prompts come one at a time and without a clock, so that the share depends on the trace, the
    size and the eviction order alone. No order finds more than Belady's. The overrides name a
    model and a server, from which the GiB of a block and the sizes of the pools follow. A block
    has policy.block_size tokens; if that is not given, it has as many tokens as one id of the
    trace names, or 16. For example:

    testbed hits trace=mooncake trace.path=FILE model=llama-3-8b
    """
    from testbed.experiments.cli.json_answers import hits_answer
    from testbed.experiments.cli.output import plain_table, print_json, show
    from testbed.experiments.look.hits.hit_curves import hit_curves
    from testbed.experiments.look.hits.shown_hits import cells_of, head_of, lines_of

    _check_replayed(served)
    words = served.words(overrides, config_dir or [])
    curves = hit_curves(words, _numbers(sizes), _names(orders), _report)
    _write(curves, csv, figure, html)
    if json:
        return print_json(hits_answer(curves))
    show(*lines_of(curves), plain_table(head_of(curves), cells_of(curves)))
    show(*map(str, filter(None, (csv, figure, html))))


def _check_replayed(served: ServedCommand) -> None:
    """Raise InputError for a server of SGLang, with its tree or without."""
    if served.from_sglang is not None:
        raise InputError(
            key="--from-sglang",
            problem="prompts come one at a time to a prefix cache of blocks, which SGLang has not",
            remedy="leave it out; testbed run --from-sglang counts what its tree finds",
        )


def _write(curves: "HitCurves", csv: Path | None, figure: Path | None, html: Path | None) -> None:
    """Write the files that are asked for."""
    from testbed.experiments.look.hits.shown_hits import chart_of, columns_of, page_of
    from testbed.experiments.look.plots import figure_of, save
    from testbed.experiments.runs.whole_files import write_cells, write_text

    if csv:
        write_cells(csv, columns_of(curves))
    if figure:
        save(figure_of([chart_of(curves)], columns=1), figure)
    if html:
        write_text(html, page_of(curves, "Hit rates by cache size"))


def _numbers(sizes: str) -> list[int]:
    """The sizes of `--sizes`."""
    names = [name for name in sizes.split(",") if name]
    for name in names:
        if not name.strip().isdecimal() or int(name) < 1:
            raise InputError(
                key="--sizes", value=sizes, problem=f"{name!r} is no number of blocks (at least 1)"
            )
    return [int(name) for name in names]


def _names(orders: str) -> list[str]:
    """The orders of `--orders`, each once."""
    names = list(dict.fromkeys(name.strip() for name in orders.split(",") if name.strip()))
    if not names:
        raise InputError(
            key="--orders",
            problem="names no eviction order",
            remedy="`testbed list eviction` shows them",
        )
    return names


def _report(order: str, num_blocks: int) -> None:
    """Print that one replay is done, since many may take minutes."""
    print(f"replayed {order} with {num_blocks:,} blocks", file=sys.stderr, flush=True)
