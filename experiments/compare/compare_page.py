"""A comparison as one HTML page."""

from collections.abc import Mapping, Sequence

from experiments.compare import curves
from experiments.compare.comparison import Comparison
from experiments.compare.terms import Term
from experiments.compare.texts import TERM_HEAD, difference_rows, number_head, number_rows, term_rows
from experiments.compare.what_it_was import what_it_was
from experiments.pages.html import NUMBER, SMALL, heading, notes, page, paragraph, picture, table

ABOUT_TERMS = (
    "Every iteration that the GPU ran, priced by the simulated run's cost model. Kernels: the GPU's own clock against "
    "the price without software times. Software: the rest of an iteration against the software times of the price."
)


def compare_page(comparison: Comparison, png: bytes | None, blamed: Mapping[tuple[str, str], Sequence[Term]]) -> str:
    """Curves first, then numbers, then configs. blamed: the terms by (simulated run, GPU run)."""
    names = [run.name for run in comparison.runs]
    said = [f"{run.name}: {what_it_was(run)}" for run in comparison.runs]
    parts = [paragraph(f"Errors are against {names[0]}."), notes([*said, *comparison.remarks])]
    if png is not None:
        parts.append(picture(png, curves.described(comparison.runs), "", SMALL))
    return page(
        f"Compared: {', '.join(names)}", *parts, *_differences(comparison), *_terms(blamed), *_numbers(comparison)
    )


def _terms(blamed: Mapping[tuple[str, str], Sequence[Term]]) -> list[str]:
    if not blamed:
        return []
    tables = [
        table(f"{simulated} against {real}", TERM_HEAD, term_rows(terms), ["", *[NUMBER] * (len(TERM_HEAD) - 1)])
        for (simulated, real), terms in blamed.items()
    ]
    return [heading(2, "Cost terms, the largest error first"), paragraph(ABOUT_TERMS), *tables]


def _numbers(comparison: Comparison) -> list[str]:
    """One table, so that columns stand under each other; a line where a group begins."""
    quantity, _, *names = number_head(comparison)
    rows, starts, last = [], [], ""
    for group, (name, of, *cells) in number_rows(comparison):
        rows.append([f"{group}, {name} ({of})", *cells])
        starts.append("" if group == last else "first")
        last = group
    classes = ["", *[NUMBER] * len(names)]
    return [heading(2, "Numbers"), table("all runs", [quantity, *names], rows, classes, starts)]


def _differences(comparison: Comparison) -> list[str]:
    found = comparison.differences
    if found.empty:
        return [heading(2, "Configs"), paragraph("The configs are the same.")]
    rows = difference_rows(comparison)
    return [heading(2, "What differs in the configs"), table("config keys", ["key", *found.columns], rows)]
