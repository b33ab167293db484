"""memory_map.html: one file with its data, style and script, and no need of a network."""

from html import escape
from importlib import resources

from experiments.memory_map.encode import encode
from testbed.sim.memory_trace import MemoryTrace

SCRIPTS = ("replay.js", "blocks.js", "draw.js", "grid.js", "mapping.js", "details.js", "keys.js", "page.js")


def page(trace: MemoryTrace, title: str) -> str:
    """The page of a trace."""
    scripts = "\n".join(source(name) for name in SCRIPTS)
    parts = {"TITLE": escape(title), "STYLE": source("page.css"), "DATA": encode(trace), "SCRIPT": scripts}
    text = source("page.html")
    for name, part in parts.items():
        text = text.replace(f"@@{name}@@", part)
    return text


def source(name: str) -> str:
    """A part of the page."""
    return (resources.files("experiments.memory_map") / "page" / name).read_text(encoding="utf-8")
