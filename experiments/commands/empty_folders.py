"""Folders that a run made and put nothing into."""

from pathlib import Path

RUNS = "runs"  # what Hydra makes for all runs, where no folder is named


def remove_empty(folder: Path) -> None:
    """Remove an empty run folder, and the folder of runs above it if nothing else is there."""
    if any(folder.iterdir()):
        return
    folder.rmdir()
    if folder.parent.name == RUNS and not any(folder.parent.iterdir()):
        folder.parent.rmdir()
