"""`testbed gpu measure`: one measurement of this machine's GPU as a CSV."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from testbed.kernels import gpu_commands

Out = Annotated[Path, Parameter(metavar="FILE", help="JSON file to write")]

app = App(name="measure", help="Print one measurement of this machine's GPU as a CSV.")


@app.command(name="attention-beside")
def attention_beside(
    *,
    kinds: Annotated[
        list[Literal["prefill", "decode", "shared"]] | None,
        Parameter(consume_multiple=True, help="default: prefill"),
    ] = None,
) -> None:
    """Measure prefill next to torch's attention, and decode next to FlashInfer's.

    Both in turn on the same caches, with a check that they agree. Kinds decode and shared (decodes
    that share a prefix) need flashinfer-python.
    """
    gpu_commands.measure("attention-beside", kinds=kinds or ["prefill"])


@app.command(name="block-moves")
def block_moves() -> None:
    """Measure transfers of whole blocks to the host, back, and both ways, by block size.

    By the engine's kernel, a copy for each fragment, one batch of copies, and through a staging
    buffer, with the share of the link and the time of decode attention meanwhile.
    """
    gpu_commands.measure("block-moves")


@app.command
def ladder() -> None:
    """Measure decode attention in five steps, each checked first.

    A row has microseconds of one layer's attention: as a captured graph, which is the GPU's part,
    and launched from Python.
    """
    gpu_commands.measure("ladder")


@app.command
def transfers(
    *,
    ways: Annotated[
        list[Literal["out", "in", "peer"]] | None,
        Parameter(consume_multiple=True, help="default: out in"),
    ] = None,
    methods: Annotated[
        list[Literal["copies", "batch", "gather", "kernel"]] | None,
        Parameter(consume_multiple=True, help="default: all"),
    ] = None,
    out: Out,
) -> None:
    """Measure transfers by number of extents, bytes and block size."""
    gpu_commands.measure(
        "transfers",
        ways=ways or ["out", "in"],
        methods=methods or ["copies", "batch", "gather", "kernel"],
        out=out,
    )
