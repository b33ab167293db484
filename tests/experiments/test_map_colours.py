"""The colours of the memory map's page, without a browser."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from testbed.experiments.look import memory_map

PAGE = Path(memory_map.__file__).parent / "page"
NODE = shutil.which("node")
ASKED = """
const painter = {data: {colors: {7: 3, 9: 20}}, base: Painter.prototype.base};
console.log(JSON.stringify([0, 1, 7, 9].map(owner => painter.base(owner)).concat(PALETTE)));
"""


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_a_legend_has_colours_where_the_first_requests_are_gone(tmp_path):
    """As in `show memory --from S`: requests 0 and 1 have ended and have no colour."""
    source = "".join((PAGE / name).read_text() for name in ("blocks.js", "draw.js"))
    (tmp_path / "asked.js").write_text(source + ASKED)
    done = subprocess.run([NODE, tmp_path / "asked.js"], capture_output=True, text=True, check=True)
    first, second, seventh, ninth, *palette = json.loads(done.stdout)
    assert [first, second, seventh] == [palette[0], palette[1], palette[3]]
    assert ninth == f"color-mix(in srgb, white 35%, {palette[2]})"
