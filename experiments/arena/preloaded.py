"""Imports what every cell needs, once for all processes of the arena."""

import testbed.api
import testbed.experiments.arena.cells
import testbed.experiments.runs.compose
import testbed.run.simulate  # noqa: F401
