"""`testbed report` of a reproduction: pictures in the paper's order, a table for each figure with
its verdicts, and what a picture says to those who do not see it.
"""

import html
import re
import struct

import pytest
from refusals import check_words

from testbed.experiments.look.pages.page import Chart, Series, environment

HEAD = (
    "figure,setting,system,quantity,published,simulated,error,role,part,margin,verdict,tolerance,"
    "note,cause,simulated on h200"
)
ROWS = (
    "fig12a,opt-13b sharegpt,vllm,sustained_rate,1.5,1.45,-3.3%,predict,calibration,0.1,pass,"
    "5%,,,1.6",
    "fig12a,opt-13b sharegpt,orca-max,sustained_rate,0.5,0.7,+40.0%,predict,calibration,-3,miss,5%,"
    "a note,a cause,",
    "fig1,opt-13b,,kv_slots,15700,15728,+0.2%,predict,arithmetic,0.9,pass,2%,,,",
)


def png(width):
    """The beginning of a picture's file, which says how large it is."""
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, 5)


@pytest.fixture
def page(testbed, tmp_path):
    """The page of a folder with five pictures and a scorecard of three rows."""
    results = tmp_path / "results"
    results.mkdir()
    for name, width in (
        ("fig12", 999),
        ("fig2", 1000),
        ("tiers", 20),
        ("fig1", 1001),
        ("fig10", 5),
    ):
        (results / f"{name}.png").write_bytes(png(width))
    (results / "scorecard.csv").write_text("\n".join([HEAD, *ROWS, ""]))
    systems = "system,future_read\norca-max,\norca-oracle,true output lengths\n"
    (results / "fig2.csv").write_text(systems)
    testbed.done("report", "results", "--html", "page.html")
    return html.unescape((tmp_path / "page.html").read_text())


def test_pictures_are_in_the_papers_order_and_others_behind(page):
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert [title.partition(":")[0] for title in titles[:3]] == ["Figure 1", "Figure 2", "fig10"]
    assert titles[3].startswith("Figure 12")
    assert len(titles) == 5


def test_systems_that_read_the_future_are_named_above_the_scorecard(page):
    assert "orca-oracle reads the future, as no real server can: true output lengths" in page
    assert "orca-max reads the future" not in page


def test_wide_pictures_have_the_whole_width(page):
    """From a thousand pixels on."""
    sections = re.findall(r'(?s)<section( class="wide")?>\s*<h3>(.*?)</h3>', page)
    wide = {title.partition(":")[0] for kind, title in sections if kind}
    assert wide == {"Figure 1", "Figure 2"}


def test_alternative_text_of_a_picture_has_its_numbers(page):
    texts = re.findall(r'<img alt="(.*?)" src', page)
    first = next(text for text in texts if text.startswith("Figure 1:"))
    check_words(("kv slots: 15,728 (published 15700)",), first)
    rates = next(text for text in texts if text.startswith("Figure 12:"))
    check_words(("vllm: sustained rate: 1.45 (published 1.5)", "0.7 (published 0.5)"), rates)


def test_rows_are_marked_by_their_verdicts_with_notes_and_causes(page):
    rows = re.findall(r'(?s)<tr class="(pass|miss)">(.*?)</tr>', page)
    assert [kind for kind, _ in rows].count("miss") == 1
    (missed,) = (
        " ".join(re.sub("<[^>]+>", " ", row).split()) for kind, row in rows if kind == "miss"
    )
    check_words(("orca-max: sustained rate", "0.5", "0.7", "+40.0%", "5%"), missed)
    check_words(("a note", "a cause"), page)
    assert "simulated on h200" in page


def test_passes_are_counted_by_part(page):
    check_words(("1 of 1 (arithmetic only)",), " ".join(page.split()))


def test_charts_of_the_same_curves_have_one_legend():
    def legends(*names):
        drawn = [Chart("c", "x", "y", [Series(n, [0, 1], [1, 2]) for n in pair]) for pair in names]
        template = '{% import "look/pages/parts.html" as parts %}{{ parts.charts(all) }}'
        return environment().from_string(template).render(all=drawn).count('<ul class="legend">')

    assert legends("ab", "ab", "ab") == 1
    assert legends("ab", "ac") == 2
    assert legends("ab") == 1
